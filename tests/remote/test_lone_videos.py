"""Clips of videos that lie by themselves in a store: ranges, not files; their indexes are kept."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import shardwise as sw
from tests.support.media import ffmpeg

NOISE = "testsrc2=s=320x240:r=25:d=8,noise=alls=60:allf=t"
H264 = "-c:v libx264 -preset ultrafast -qp 12 -g 25 -pix_fmt yuv420p"
NAMES = ("a/end.mp4", "b/front.mp4")


@pytest.fixture(scope="module")
def videos(media_files, tmp_path_factory):
    """Two videos of some 10 MB, one with its `moov` at the end and one with it in front."""
    folder = tmp_path_factory.mktemp("lone")
    sound = ["-f", "lavfi", "-i", "sine=f=440:d=8:r=48000"]
    options = ["-f", "lavfi", "-i", NOISE, *sound, *H264.split(), "-c:a", "aac"]
    ffmpeg(*options, str(folder / "end.mp4"))
    ffmpeg("-i", str(folder / "end.mp4"), "-c", "copy", "-movflags", "faststart",
           str(folder / "front.mp4"))  # fmt: skip
    return {name: (folder / name[2:]).read_bytes() for name in NAMES}


@pytest.fixture
def lists(s3, videos, request):
    """A list of the videos in a store, by their names, and by absolute URLs; and their root."""
    folder = f"lone-{request.node.name}"
    root = s3.put(f"{folder}/{NAMES[0]}", videos[NAMES[0]]).removesuffix(f"/{NAMES[0]}")
    s3.put(f"{folder}/{NAMES[1]}", videos[NAMES[1]])
    urls = {}
    for kind, prefix in (("names", ""), ("urls", f"{root}/")):
        rows = [json.dumps({"path": prefix + name, "label": n}) for n, name in enumerate(NAMES)]
        urls[kind] = s3.put(f"{folder}/{kind}.jsonl", "\n".join(rows).encode())
    return {**urls, "root": root}


class Asked:
    """The ranges of videos that were asked of a store since the last call."""

    def __init__(self, s3):
        self._s3, self._seen = s3, 0

    def __call__(self):
        seen = self._s3.requests()
        new, self._seen = seen[self._seen :], len(seen)
        return {
            (each["path"].partition("?")[0], each["range"]): each["num_bytes"]
            for each in new
            if each["method"] == "GET" and each["path"].partition("?")[0].endswith(".mp4")
        }


@pytest.fixture
def asked(s3):
    found = Asked(s3)
    found()
    return found


def clips_of(s3, lists, kind="names", **options):
    ds = sw.files(lists[kind], root=lists["root"], storage=s3.unhedged)
    return ds.clips("video", frames=20, stride=2, step=60, **options)


def test_an_index_is_moov_and_a_clip_is_its_own_bytes(s3, lists, videos, asked):
    clips = clips_of(s3, lists)
    assert len(clips) == 2 * 3
    found = asked()
    for name, data in videos.items():
        size = sum(size for (path, _), size in found.items() if path.endswith(name))
        at = data.index(b"moov") - 4
        assert 0 < size <= int.from_bytes(data[at : at + 4], "big") + (256 << 10) < len(data) / 4
    for number in range(len(clips)):
        loaded = clips.load(np.array([number]))
        found = asked()
        assert 1 <= len(found) <= 2
        frames = loaded["__media__"][0]["frames"]
        track = clips.source._files["video"].index(number // 3).first("video")
        parts = track.segments(np.array(frames))
        needed = sum(int(track.columns.size[part.samples].sum()) for part in parts)
        assert sum(found.values()) <= 1.3 * needed
        expected = sw.media()(videos[NAMES[number // 3]]).frames(frames)
        np.testing.assert_array_equal(loaded["video"][0].transpose(0, 2, 3, 1), expected)
        assert loaded["label"].tolist() == [number // 3]


def test_the_sound_of_a_clip_is_a_second_range(s3, lists, videos, asked):
    clips = clips_of(s3, lists, audio="same")
    asked()
    loaded = clips.load(np.array([2]))
    assert 1 <= len(asked()) <= 2
    whole = sw.audio()(videos[NAMES[0]])
    start = round(loaded["__media__"][0]["frames"][0] / 25 * 48_000)
    sound = loaded["video.audio"][0]
    np.testing.assert_allclose(sound, whole[:, start : start + sound.shape[1]], atol=1e-3)


def test_indexes_are_kept_and_travel_to_other_processes(s3, lists, asked):
    first = clips_of(s3, lists)
    assert asked()
    again = clips_of(s3, lists)
    assert again.fingerprint == first.fingerprint
    assert not asked()
    copy = pickle.dumps(again)
    np.testing.assert_array_equal(pickle.loads(copy)[5]["video"], first[5]["video"])
    with sw.DataLoader(again, batch_size=4, num_workers=1, output="numpy") as loader:
        assert sum(len(batch["video"]) for batch in loader) == 6


def test_a_list_may_name_absolute_urls_below_its_root(s3, lists):
    names, urls = (
        sw.files(lists[k], root=lists["root"], storage=s3.unhedged) for k in ("names", "urls")
    )
    for one, other in zip(names.select("label"), urls.select("label"), strict=True):
        assert one["__key__"] == other["__key__"]
    with pytest.raises(sw.DataError, match="does not lie in"):
        len(sw.files(lists["urls"], root=f"{lists['root']}/a", storage=s3.unhedged))


def test_a_file_that_was_replaced_is_an_error_once(s3, lists, videos, request):
    clips_of(s3, lists)
    s3.put(f"lone-{request.node.name}/{NAMES[0]}", videos[NAMES[1]])
    stale = clips_of(s3, lists)
    with pytest.raises(sw.StaleIndexError, match=r"call clips\(\) again"):
        stale[0]
    fresh = clips_of(s3, lists)
    np.testing.assert_array_equal(fresh[0]["video"], fresh[3]["video"])


def test_a_file_that_cannot_be_used_is_named_and_is_looked_at_again(s3, lists, videos, request):
    place = f"lone-{request.node.name}/{NAMES[1]}"
    s3.put(place, videos[NAMES[1]][:100_000])
    with pytest.raises(sw.DataError, match="the file was cut") as error:
        clips_of(s3, lists)
    assert error.value.key == NAMES[1]
    dropped = clips_of(s3, lists, on_bad="drop")
    assert (len(dropped), dropped.source.counts.num_bad) == (3, 1)
    s3.put(place, videos[NAMES[1]])
    assert len(clips_of(s3, lists)) == 6
