"""`Dataset.clips`: which clips there are, that they show the right frames, and who gets them."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

import shardwise as sw
from shardwise.base import plugins
from tests.support.commands import document
from tests.support.media import NUM_FRAMES, SOUND, numbers_in

# Kinds in which the first frame has the number 0.
KINDS = ("b_frames", "one_key", "open_gop", "vfr", "offset", "negative_cts", "hevc", "vp9_mp4",
         "fragmented", "sound")  # fmt: skip
CUTS = [
    {"start": 0.0, "end": 1.0, "caption": "first"},
    {"start": 1.0, "end": 1.04, "caption": "one frame"},
    {"start": 1.401, "end": 3.0, "caption": "last"},
]


@pytest.fixture(scope="module")
def urls(media_files, tmp_path_factory):
    """Two shards of videos of 75 frames; the samples have a label and cuts."""
    folder = tmp_path_factory.mktemp("clips")
    for number, names in enumerate((KINDS[:6], KINDS[6:])):
        with sw.TarWriter(folder / f"{number}.tar", media=True) as writer:
            for name in names:
                writer.write(
                    {"__key__": name, "mp4": media_files.read(name), "cls": number,
                     "json": {"scenes": CUTS}}
                )  # fmt: skip
    return [str(folder / "0.tar"), str(folder / "1.tar")]


def video(urls):
    return sw.tar(urls).select("mp4")


def check(clip, media, layout="TCHW"):
    assert numbers_in(np.asarray(clip), layout) == media["frames"]


def test_clips_of_every_kind_show_their_frames(urls):
    ds = video(urls).clips("mp4", frames=4, stride=3, step=7)
    per_video = len(range(0, NUM_FRAMES - 9, 7))
    assert len(ds) == len(KINDS) * per_video
    assert ds.shard_sizes.tolist() == [6 * per_video, 4 * per_video]
    for number, sample in enumerate(ds):
        media = sample["__media__"]
        start = 7 * (number % per_video)
        assert media["frames"] == [start, start + 3, start + 6, start + 9]
        assert (media["clip"], media["key"]) == (number % per_video, KINDS[number // per_video])
        assert media["url"] == urls[number >= 6 * per_video]
        assert sample["mp4"].shape == (4, 3, 120, 160)
        check(sample["mp4"], media)


def test_other_fields_ride_along_and_maps_filters_and_concats_work(urls):
    ds = sw.tar(urls).decode(cls=int).select("mp4", "cls").clips("mp4", frames=8, count=2)
    assert [s["cls"] for s in ds] == [0] * 12 + [1] * 8
    kept = ds.filter(lambda c: c["cls"] == 1, columns=["cls"])
    assert len(kept) == 8
    joined = sw.concat([kept, ds.subset([1, 0])]).map(lambda s: {"sum": int(s["cls"])})
    assert [s["sum"] for s in joined] == [1] * 8 + [0, 0]
    odd = sw.tar(urls).subset([9, 2]).clips("mp4", frames=8, count=1)
    assert [s["__key__"] for s in odd] == [KINDS[9], KINDS[2]]
    assert [odd.url_of(0), odd.url_of(1)] == [urls[1], urls[0]]
    mixed = sw.mix({"a": (ds.select("mp4"), 1), "b": (ds.select("mp4"), 1)}, until=8)
    assert len({bytes(s["mp4"]) for s in (mixed[i] for i in range(8))}) > 1


def test_by_rate_the_frame_that_is_on_the_screen_is_shown(urls):
    # 25 frames a second: at 10 a second frames 0, 2.5, 5, 7.5 after the first.
    ds = video(urls).subset([0]).clips("mp4", frames=4, fps=10, step=20)
    assert [s["__media__"]["frames"] for s in ds][:2] == [[0, 2, 5, 7], [20, 22, 25, 27]]
    for sample in ds:
        check(sample["mp4"], sample["__media__"])
    varying = video(urls).subset([KINDS.index("vfr")]).clips("mp4", frames=5, fps=3, count=4)
    for sample in varying:
        media = sample["__media__"]
        check(sample["mp4"], media)
        track = varying.source._files["mp4"].index(3).first("video")
        numerator, denominator = media["time_base"]
        ticks = [media["pts"][0] + i * denominator // (3 * numerator) for i in range(5)]
        assert media["frames"] == [max(np.flatnonzero(track.pts <= t)) for t in ticks]


def test_another_distribution_adds_a_decoder_by_its_name(urls, monkeypatch):
    calls = []

    class Entry:
        name = "other"

        def load(self):
            return decode

    def decode(run):
        calls.append(run.segment.wanted.tolist())
        for number in run.segment.wanted.tolist():
            run.place(number, np.full((*run.form.scaled, 3), number, np.uint8))

    real = plugins._others
    monkeypatch.setattr(
        plugins, "_others", lambda g: {"other": Entry()} if g == "video_backends" else real(g)
    )
    ds = video(urls).subset([KINDS.index("one_key")])
    clip = ds.clips("mp4", frames=3, size=(60, 80), layout="THWC", backend="other")[0]
    assert calls
    assert clip["mp4"].shape == (3, 60, 80, 3)
    assert clip["mp4"][0].any() == bool(calls[0][0])
    again = sw.video(3, size=(60, 80), layout="THWC", backend="other", start=0)
    np.testing.assert_array_equal(again(ds[0]["mp4"]), clip["mp4"])


def test_clips_begin_by_seconds(urls):
    ds = video(urls).subset([0]).clips("mp4", frames=5, seconds=0.5)
    assert [s["__media__"]["frames"][0] for s in ds] == [0, 12, 25, 37, 50, 62]


def test_cuts_give_clips_with_their_rows(urls):
    ds = sw.tar(urls).select("mp4", "json").subset([0]).clips("mp4", frames=10, cuts="json.scenes")
    assert ds.source.counts.num_short == 1
    first, last = ds[0]["__media__"], ds[1]["__media__"]
    assert (first["cut"], last["cut"]) == (CUTS[0], CUTS[2])
    assert first["frames"] == list(range(8, 18))  # the middle of 25
    assert last["frames"][0] == 35 + (40 - 9) // 2
    check(ds[1]["mp4"], last)
    with pytest.raises(sw.DataError, match=r"list of cuts.*b_frames"):
        sw.tar(urls).select("mp4", "json").clips("mp4", cuts="json.nothing")


def test_jitter_is_keyed_by_epoch_and_clip_and_stays_inside(urls):
    ds = video(urls).subset([0, 1]).clips("mp4", frames=4, step=20, jitter=20)

    def starts(epoch, seed=0, ids=None):
        ids = np.arange(len(ds)) if ids is None else np.array(ids)
        loaded = ds.load(ids, epoch=epoch, seed=seed)
        for clip, media in zip(loaded["mp4"], loaded["__media__"], strict=True):
            check(clip, media)
        return [media["frames"][0] for media in loaded["__media__"]]

    zero = starts(0)
    assert zero != starts(1)
    assert zero != starts(0, seed=1)
    assert starts(0, ids=[5, 2]) == [zero[5], zero[2]]
    for number, start in enumerate(zero):
        base = 20 * (number % 4)
        assert base <= start < min(base + 20, NUM_FRAMES - 3)


def test_short_videos_are_dropped_masked_repeated_or_an_error(media_files, tmp_path):
    with sw.TarWriter(tmp_path / "s.tar", media=True) as writer:
        writer.write({"__key__": "long", "mp4": media_files.read("b_frames")})
        short = media_files.make("five.mp4", "-c:v libx264 -preset ultrafast -pix_fmt yuv420p",
                                 count=5)  # fmt: skip
        writer.write({"__key__": "short", "mp4": short.read_bytes()})
    ds = sw.tar(tmp_path / "s.tar")
    dropped = ds.clips("mp4", frames=8, count=1)
    assert (len(dropped), dropped.source.counts.num_short) == (1, 1)
    masked = ds.clips("mp4", frames=8, count=1, short="mask", size=(60, 80))
    assert len(masked) == 2
    batch = masked.load(np.arange(2), out={})
    assert batch["mp4.mask"].tolist() == [[True] * 8, [True] * 5 + [False] * 3]
    assert not batch["mp4"][1][5:].any()
    assert batch["__media__"][1]["frames"] == [0, 1, 2, 3, 4, -1, -1, -1]
    repeated = ds.clips("mp4", frames=8, count=1, short="repeat")[1]
    assert numbers_in(repeated["mp4"], "TCHW") == [0, 1, 2, 3, 4, 4, 4, 4]
    with pytest.raises(sw.DataError, match=r"has 5 frames.*'short'"):
        ds.clips("mp4", frames=8, short="error")


def test_bad_videos_are_an_error_or_left_out_with_a_count(media_files, tmp_path, caplog):
    path = tmp_path / "b.tar"
    with sw.TarWriter(path) as writer:
        writer.write({"__key__": "good", "mp4": media_files.read("b_frames")})
        writer.write({"__key__": "cut", "mp4": media_files.read("b_frames")[:3000]})
        writer.write({"__key__": "none", "txt": "no video"})
    ds = sw.tar(path)
    with pytest.raises(sw.DataError, match="shardwise index --media"):
        ds.clips("mp4")
    document("index", "--media", path, exit_code=1)
    with pytest.raises(sw.DataError, match="'cut'"):
        ds.clips("mp4")
    left = ds.clips("mp4", frames=25, on_bad="drop")
    assert (len(left), left.source.counts.num_bad) == (3, 2)
    assert "leaves out 'cut': " in caplog.text
    assert "leaves out 2 of 3 videos" in caplog.text
    check(left[2]["mp4"], left[2]["__media__"])


def test_changed_bytes_are_an_error_that_names_the_clip(urls, media_files, tmp_path):
    path = tmp_path / "c.tar"
    with sw.TarWriter(path, media=True) as writer:
        writer.write({"__key__": "x", "mp4": media_files.read("b_frames")})
    ds = sw.tar(path).clips("mp4", frames=25)
    track = ds.source._files["mp4"].index(0).first("video")
    data = bytearray(path.read_bytes())
    at = data.index(media_files.read("b_frames")[:64]) + int(track.columns.offset[30]) + 40
    data[at] ^= 255
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data[at : at + 1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ds[0]["__media__"]["frames"][0] == 0
    with pytest.raises(sw.DataError, match=r"frames 25 to 49.*CRC") as error:
        ds.load(np.array([1]))
    assert (error.value.key, error.value.field, error.value.index) == ("x", "mp4", 1)
    with sw.DataLoader(ds, batch_size=1, on_error="skip", num_threads=0) as loader:
        assert [batch["__index__"].tolist() for batch in loader] == [[0], [], [2]]
        assert loader.stats()["skipped"] == 1


def test_the_sound_of_the_same_time_comes_along(media_files, tmp_path):
    path = tmp_path / "a.tar"
    with sw.TarWriter(path, media=True) as writer:
        writer.write({"__key__": "x", "mp4": media_files.read("sound")})
        writer.write({"__key__": "y", "mp4": media_files.read("b_frames")})
    ds = sw.tar(path).clips("mp4", frames=10, audio="same", size=64)
    assert (len(ds), ds.source.counts.num_bad) == (14, 0)
    whole = sw.audio()(media_files.read("sound"))
    for number, sample in enumerate(ds[:7]):
        sound = sample["mp4.audio"]
        assert sound.shape == (1, 17640)
        assert sample["mp4.audio.mask"].all()
        expected = whole[:, 17640 * number : 17640 * (number + 1)]
        np.testing.assert_allclose(sound, expected, atol=1e-4)
    for sample in ds[7:]:  # a video without sound: silence of the same shape
        assert sample["mp4.audio"].shape == (1, 17640)
        assert not sample["mp4.audio"].any()
        assert not sample["mp4.audio.mask"].any()


def test_silence_has_the_rate_that_a_decoder_tells_not_that_of_a_header(media_files, tmp_path):
    kind = "-c:v libx264 -preset ultrafast -pix_fmt yuv420p -c:a libmp3lame"
    data = bytearray(media_files.make("mp3_sound.mp4", kind, inputs=SOUND).read_bytes())
    at = data.rindex(b"mp4a") + 28
    data[at : at + 2] = (22050).to_bytes(2, "big")  # as the header of HE-AAC: half
    with sw.TarWriter(tmp_path / "a.tar", media=True) as writer:
        writer.write({"__key__": "x", "mp4": bytes(data)})
        writer.write({"__key__": "y", "mp4": media_files.read("b_frames")})
    ds = sw.tar(tmp_path / "a.tar").clips("mp4", frames=10, count=1, audio="same")
    assert [sample["mp4.audio"].shape for sample in ds] == [(1, 17640)] * 2


def test_files_and_wrapped_videos_are_indexed_at_once(media_files, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.mkv").write_bytes(media_files.read("mkv"))
    (tmp_path / "x" / "b.ts").write_bytes(media_files.read("ts"))
    for ds in (
        sw.files(tmp_path, suffixes=(".mkv", ".ts"), field="video"),
        sw.wrap([{"video": media_files.read("mkv")}, {"video": media_files.read("ts")}]),
    ):
        clips = ds.clips("video", frames=25, stride=2, step=10)
        assert len(clips) == 2 * 3
        for sample in pickle.loads(pickle.dumps(clips)):
            check(sample["video"], sample["__media__"])


@pytest.mark.parametrize(
    "options",
    [{"num_threads": 0}, {"num_threads": 2}, {"num_workers": 2}],
    ids=["inline", "threads", "processes"],
)
def test_every_executor_gives_the_same_batches_straight_into_the_rows(urls, options):
    ds = video(urls).clips("mp4", frames=4, stride=2, step=15, jitter=15, size=(60, 80))
    assert dict(ds.layout())["mp4"] == ((4, 3, 60, 80), np.dtype(np.uint8))
    with sw.DataLoader(ds, batch_size=8, shuffle=True, output="numpy", **options) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                expected = ds.load(batch["__index__"], epoch=epoch)
                np.testing.assert_array_equal(batch["mp4"], expected["mp4"])
                assert batch["__media__"] == expected["__media__"]


def test_the_fingerprint_knows_options_and_index(urls, media_files, tmp_path):
    ds = video(urls)
    one = ds.clips("mp4", frames=8, step=10)
    assert one.fingerprint == video(urls).clips("mp4", frames=8, step=10, size=9).fingerprint
    others = [
        ds.clips("mp4", frames=8, step=11), ds.clips("mp4", frames=8, step=10, jitter=2),
        ds.clips("mp4", frames=9, step=10), ds.subset([0, 1]).clips("mp4", frames=8, step=10),
    ]  # fmt: skip
    assert len({one.fingerprint, ds.fingerprint, *(o.fingerprint for o in others)}) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 0}, "frames=0"),
        ({"step": 4, "count": 2}, "only one of step"),
        ({"fps": 8, "stride": 2}, "only one of the two"),
        ({"short": "pad"}, "use one of"),
        ({"backend": "opencv"}, "use one of"),
        ({"size": (0, 4)}, "height, width"),
        ({"seconds": 0}, "seconds=0"),
        ({"jitter": -1}, "jitter=-1"),
        ({"cuts": "nothing"}, "no field 'nothing'"),
    ],
)
def test_odd_options_are_refused(urls, options, message):
    with pytest.raises(ValueError, match=message):
        video(urls).clips("mp4", **options)


def test_a_map_before_is_refused(urls):
    with pytest.raises(ValueError, match="after map"):
        video(urls).map(lambda s: s).clips("mp4")


def test_a_field_that_has_a_decoder_or_is_no_media_is_refused(urls):
    ds = sw.tar(urls)
    with pytest.raises(ValueError, match=r"decode\(\) has given it video\(frames=4\)"):
        ds.decode(mp4=sw.video(4)).clips("mp4")
    with pytest.raises(ValueError, match="'cls' is in no media index"):
        ds.clips("cls")


def test_several_clips_of_a_video_are_one_sample(urls):
    alone = video(urls).clips("mp4", frames=4, stride=2, count=3, size=(60, 80))
    ds = video(urls).clips("mp4", frames=4, stride=2, per_sample=3, size=(60, 80))
    assert len(ds) == len(KINDS)
    assert dict(ds.layout())["mp4"] == ((3, 4, 3, 60, 80), np.dtype(np.uint8))
    batch = ds.load(np.array([4, 1]), out={})
    for row, number in enumerate((4, 1)):
        expected = [alone[3 * number + i] for i in range(3)]
        np.testing.assert_array_equal(batch["mp4"][row], [each["mp4"] for each in expected])
        frames = [each["__media__"]["frames"] for each in expected]
        assert batch["__media__"][row]["frames"] == frames
    grouped = video(urls).subset([0]).clips("mp4", frames=4, step=8, per_sample=4, jitter=3)
    assert len(grouped) == 2  # of nine clips
    assert grouped[1]["mp4"].shape == (4, 4, 3, 120, 160)
    masked = video(urls).subset([0]).clips("mp4", frames=100, per_sample=2, short="mask")[0]
    assert masked["mp4.mask"].sum(axis=1).tolist() == [NUM_FRAMES] * 2
    assert ds.fingerprint != alone.fingerprint
    with pytest.raises(ValueError, match="sounds of several clips"):
        video(urls).clips("mp4", per_sample=2, audio="same")


def test_a_local_film_of_a_list_that_was_written_again_is_indexed_again(tmp_path, media_files):
    film, listed = tmp_path / "film.mp4", tmp_path / "films.csv"
    listed.write_text("path\nfilm.mp4\n")
    for number, kind in enumerate(("b_frames", "hevc", "hevc")):
        film.write_bytes(media_files.read(kind))
        os.utime(film, (number, number))
        (clip,) = sw.files(str(listed)).clips("video", frames=5, count=1)
        check(clip["video"], clip["__media__"])
