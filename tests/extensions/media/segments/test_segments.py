"""Segments of sounds as samples: rows of a field, and lists of NeMo, lhotse and Kaldi."""

from __future__ import annotations

import gzip
import json
import pickle

import numpy as np
import pytest
import soundfile

import shardwise as sw
from shardwise.extensions.media.clips.lone_files import LoneFiles

RATE = 16000
ROWS = [
    {"offset": 1.5, "duration": 2.0, "text": "one", "speaker": "s1"},
    {"start": 4.0, "end": 7.25, "text": "two"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sounds")
    for number, name in enumerate(("a.flac", "b.wav")):
        rng = np.random.default_rng(number)
        sound = rng.uniform(-0.5, 0.5, RATE * 20)
        soundfile.write(path / name, sound, RATE, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def whole(folder):
    return {name: sw.audio()((folder / name).read_bytes()) for name in ("a.flac", "b.wav")}


def test_sounds_without_durations_are_answered_with_parts_of_each(folder):
    with pytest.raises(ValueError, match=r"give cuts=.*decode\(audio=sw\.audio\(seconds=5\)\)"):
        sw.files(folder).segments("audio")


def span(sound, offset, duration):
    return sound[:, round(offset * RATE) : round((offset + duration) * RATE)]


def shard(folder, tmp_path, name="a.flac"):
    path, field = tmp_path / "s.tar", name.partition(".")[2]
    with sw.TarWriter(path, media=True) as writer:
        for key, rows in (("x", ROWS), ("y", ROWS[:1])):
            data = (folder / name).read_bytes()
            writer.write({"__key__": key, field: data, "json": {"segments": rows}})
    return path


@pytest.mark.parametrize("name", ["a.flac", "b.wav"])
def test_each_row_of_a_field_is_a_sample_with_what_it_says(folder, whole, tmp_path, name):
    field = name.partition(".")[2]
    ds = sw.tar(shard(folder, tmp_path, name)).segments(field, cuts="json.segments")
    assert len(ds) == 3
    for segments in (ds, pickle.loads(pickle.dumps(ds))):
        for sample, row in zip(segments, (ROWS[0], ROWS[1], ROWS[0]), strict=True):
            assert sample["text"] == row["text"]
            assert sample.get("speaker") == row.get("speaker")
            expected = span(whole[name], sample["offset"], sample["duration"])
            np.testing.assert_array_equal(sample[field], expected)
    assert [sample["__key__"] for sample in ds] == ["x:0", "x:1", "y:0"]
    assert ds.column("duration").tolist() == [2.0, 3.25, 2.0]
    assert ds.subset([2])[0]["__key__"] == "y:0"


def test_a_segment_at_another_rate_is_what_it_is_in_the_whole(folder, tmp_path):
    ds = sw.tar(shard(folder, tmp_path)).segments("flac", cuts="json.segments", rate=8000)
    expected = sw.audio(rate=8000)((folder / "a.flac").read_bytes())
    np.testing.assert_array_equal(ds[1]["flac"], expected[:, 32_000 : 32_000 + 26_000])


@pytest.mark.parametrize("options", [{"num_threads": 2}, {"num_workers": 2}])
def test_every_executor_gives_the_same_segments_in_buckets_of_their_lengths(
    folder, whole, tmp_path, options
):
    ds = sw.tar(shard(folder, tmp_path)).segments("flac", cuts="json.segments")
    by = sw.buckets("duration", batch_size=1)
    found = {}
    with sw.DataLoader(ds.select("flac", "offset", "duration"), 1, batch_by=by, ragged="pad",
                       rank=0, world_size=1, output="numpy", **options) as loader:  # fmt: skip
        for batch in loader:
            (length,) = batch["flac.mask"].sum(axis=-1).reshape(-1).tolist()
            found[batch["__key__"][0]] = batch["flac"][0][:, :length]
    for sample in ds:
        np.testing.assert_array_equal(found[sample["__key__"]], sample["flac"])


def nemo(folder):
    rows = [
        {"audio_filepath": "a.flac", "offset": 2.0, "duration": 1.0, "text": "x", "speaker": "p"},
        {"audio_filepath": "b.wav", "offset": 3.5, "duration": 1.5, "text": "y", "speaker": "q"},
    ]
    (folder / "nemo.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return sw.files(folder / "nemo.jsonl")


def lhotse(folder):
    def cut(path, start, duration, text, speaker):
        return {"id": path, "start": start, "duration": duration, "channel": 0, "type": "MonoCut",
                "supervisions": [{"text": text, "speaker": speaker, "start": 0}],
                "recording": {"sources": [{"type": "file", "source": path}]}}  # fmt: skip

    rows = [cut("a.flac", 2.0, 1.0, "x", "p"), cut("b.wav", 3.5, 1.5, "y", "q")]
    (folder / "cuts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return sw.files(folder / "cuts.jsonl")


def kaldi(folder):
    path = folder / "kaldi"
    path.mkdir(exist_ok=True)
    (path / "wav.scp").write_text(f"ra {folder}/a.flac\nrb {folder}/b.wav\n")
    (path / "segments").write_text("u1 ra 2.0 3.0\nu2 rb 3.5 5.0\n")
    (path / "text").write_text("u1 x\nu2 y\n")
    (path / "utt2spk").write_text("u1 p\nu2 q\n")
    return sw.files(path / "wav.scp", root=folder)


@pytest.mark.parametrize("read", [nemo, lhotse, kaldi])
def test_a_list_of_speech_has_a_segment_a_row(folder, whole, read):
    ds = read(folder).segments("audio")
    assert ds.column("duration").tolist() == [1.0, 1.5]
    for sample, (name, offset, text, speaker) in zip(
        ds, (("a.flac", 2.0, "x", "p"), ("b.wav", 3.5, "y", "q")), strict=True
    ):
        assert (sample["text"], sample["speaker"], sample["offset"]) == (text, speaker, offset)
        expected = span(whole[name], offset, sample["duration"])
        np.testing.assert_array_equal(sample["audio"], expected)


@pytest.mark.parametrize("name", ["manifest.json", "cuts.jsonl.gz"])
def test_lists_have_the_names_that_nemo_and_lhotse_give_them(folder, whole, name):
    rows = [
        {"audio_filepath": "a.flac", "offset": "2.0", "duration": 1},
        {"audio_filepath": "a.flac", "duration": 0.5},
    ]
    text = "\n".join(map(json.dumps, rows)).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    first, second = sw.files(folder / name).segments("audio")
    assert (first["offset"], first["duration"], second["offset"]) == (2.0, 1.0, 0.0)
    length = second["audio"].shape[1]
    np.testing.assert_array_equal(second["audio"], whole["a.flac"][:, :length])


def test_cuts_of_lhotse_that_change_their_sound_are_refused_and_channels_are_named(folder):
    recording = {"sources": [{"type": "file", "source": "a.flac", "channels": [0, 1]}]}
    row = {"id": "x", "start": 1.0, "duration": 1.0, "channel": 1, "supervisions": [],
           "recording": recording}  # fmt: skip
    path = folder / "two.jsonl"
    path.write_text(json.dumps(row))
    assert sw.files(path).segments("audio")[0]["channel"] == 1
    recording["transforms"] = [{"name": "Speed", "kwargs": {"factor": 1.1}}]
    path.write_text(json.dumps(row))
    with pytest.raises(sw.DataError, match="to be changed by lhotse"):
        len(sw.files(path))


def test_a_segment_of_a_listed_file_is_one_range_of_few_bytes(folder, monkeypatch):
    ds = nemo(folder).segments("audio")
    ranges = []
    read = LoneFiles.read

    def counted(self, wanted):
        ranges.extend(part for parts in wanted.values() for part in parts)
        return read(self, wanted)

    monkeypatch.setattr(LoneFiles, "read", counted)
    for number, name in enumerate(("a.flac", "b.wav")):
        ds[number]
        (one,) = ranges
        share = ds[number]["duration"] / 20 * (folder / name).stat().st_size
        assert one[1] - one[0] <= 1.3 * share + 32_000
        ranges.clear()


def test_a_command_of_kaldi_is_not_run(folder):
    path = folder / "piped"
    path.mkdir()
    (path / "wav.scp").write_text("ra touch x |\n")
    with pytest.raises(sw.DataError, match="commands are not run"):
        len(sw.files(path / "wav.scp"))


@pytest.mark.parametrize(
    ("rows", "match"),
    [([{"text": "x"}], "give offset"), ([{"offset": 1, "duration": -1}], "give offset"),
     ("no rows", "must be a row or a list"), ([{"start": 3, "end": 2}], "give offset")],
)  # fmt: skip
def test_a_row_without_a_span_is_an_error_with_its_key(folder, tmp_path, rows, match):
    ds = sw.wrap([{"wav": b"", "json": json.dumps({"segments": rows})}])
    with pytest.raises(sw.DataError, match=match):
        ds.segments("wav", cuts="json.segments")


def test_a_segment_may_end_a_tenth_of_a_second_behind_its_sound(folder):
    data = (folder / "b.wav").read_bytes()
    ds = sw.wrap([{"wav": data, "offset": 19.0, "duration": 1.05},
                  {"wav": data, "offset": 19.0, "duration": 1.5}]).segments("wav")  # fmt: skip
    assert not ds[0]["wav"][:, RATE:].any()
    with pytest.raises(sw.DataError, match="the sound lasts 20 s"):
        ds[1]
