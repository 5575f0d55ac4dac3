"""How many requests clips and segments of remote files take, counted at a server."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import soundfile

import shardwise as sw
from tests.support.media import H264, SOUND
from tests.support.web import send_range, serving

RATE = 16_000
# A busy machine is late, and its requests would be sent twice.
ONCE = {"hedge": False}


def ranges_of(asked):
    """First and last byte of each range that was asked for, of media files and their shards."""
    found = [
        headers["range"].removeprefix("bytes=").split("-")
        for method, path, headers in asked
        if method == "GET"
        and path.rpartition(".")[2] in ("mp4", "mkv", "flac", "wav", "mp3", "tar")
    ]
    asked.clear()
    return sorted((int(first), int(last) + 1) for first, last in found)


@pytest.fixture(scope="module")
def web():
    """A web server of some files by their paths."""
    content = {}

    def answer(handler):
        send_range(handler, content[handler.path.partition("?")[0]])

    with serving(answer) as (url, asked):
        yield url, content, asked


# Opus starts half a second early, which lies between the pictures before.
@pytest.mark.parametrize(("name", "more"), [("far_aac.mp4", 0), ("far_opus.mkv", 64 << 10)])
def test_a_clip_with_its_sound_is_two_requests_of_few_bytes(media_files, tmp_path, web, name, more):
    url, content, asked = web
    codec = "aac" if name.endswith("mp4") else "libopus -ar 48000"
    video = H264.replace("-crf 28", "-b:v 6M -minrate 6M -maxrate 6M -bufsize 300k")
    data = media_files.make(name, f"{video} -g 25 -c:a {codec}", inputs=SOUND).read_bytes()
    content[f"/{name}"] = data
    (tmp_path / "list.csv").write_text(f"path\n{name}\n")
    files = sw.files(tmp_path / "list.csv", root=url, storage=ONCE)
    ds = files.clips("video", frames=16, step=13, audio="same")
    whole = sw.media()(data)
    for number in range(len(ds)):
        asked.clear()
        sample = ds[number]
        ranges = ranges_of(asked)
        at, table = np.array([number]), ds.source.table
        spans, numbers = table.locate(at)
        samples = ds.source._owners.ids(table.videos[spans])
        chosen = ds.source._choose_clips(at, spans, numbers, samples, seed=0, epoch=0)
        ((clip,),) = next(chosen)[1]
        video, sound = (clip.index.first(kind) for kind in ("video", "audio"))
        (segment,) = video.segments(clip.frames)
        needed = video.columns.size[segment.samples].sum()
        needed += sound.columns.size[clip._packets(video, sound)].sum()
        assert len(ranges) <= 2
        assert sum(stop - start for start, stop in ranges) <= max(1.3 * needed, needed + more)
        heard = whole.audio(13 * number / 25, (13 * number + 16) / 25)
        np.testing.assert_allclose(sample["video.audio"], heard, atol=1e-4)


def speech(minutes):
    """Minutes of noise, and rows of short segments of it."""
    noise = np.random.default_rng(4).integers(-900, 900, 60 * minutes * RATE).astype(np.int16)
    rows = [{"offset": 10.0 * minutes * n + 0.37, "duration": 1.25} for n in range(6)]
    return noise, rows


def encoded(noise, kind):
    stream = io.BytesIO()
    soundfile.write(stream, noise, RATE, format=kind.upper())
    return stream.getvalue()


@pytest.mark.parametrize("storage", ["list", "tar"])
@pytest.mark.parametrize(
    ("kind", "rate", "minutes"),
    [("flac", None, 2), ("flac", 8000, 2), ("wav", None, 2), ("mp3", None, 1),
     pytest.param("flac", None, 60, marks=pytest.mark.long)],
)  # fmt: skip
def test_a_segment_is_one_request_of_few_bytes(tmp_path, web, kind, rate, minutes, storage):
    url, content, asked = web
    noise, rows = speech(minutes)
    data = encoded(noise, kind)
    if storage == "list":
        content[f"/long.{kind}"] = data
        lines = [json.dumps({"audio_filepath": f"long.{kind}", **row}) for row in rows]
        (tmp_path / "nemo.jsonl").write_text("\n".join(lines))
        files = sw.files(tmp_path / "nemo.jsonl", root=url, storage=ONCE)
        ds = files.segments("audio", rate=rate)
        field = "audio"
    else:
        with sw.TarWriter(tmp_path / "s.tar", media=True) as writer:
            writer.write({"__key__": "a", "json": {"cuts": []}})
            writer.write({"__key__": "x", kind: data, "json": {"cuts": rows}})
        for path in tmp_path.iterdir():
            content[f"/{path.name}"] = path.read_bytes()
        shard = sw.tar(f"{url}/s.tar", storage=ONCE)
        ds = shard.segments(kind, cuts="json.cuts", rate=rate).select(kind)
        field = kind
    ds[len(ds) - 1]  # opens what every segment needs: the list, indexes
    whole = sw.audio(rate=rate)(data)
    shown = rate or RATE
    for number in range(len(ds) - 1):
        asked.clear()
        sound = ds[number][field]
        begin = round(rows[number]["offset"] * shown)
        np.testing.assert_allclose(sound, whole[:, begin : begin + sound.shape[1]], atol=1e-5)
        ((start, stop),) = ranges_of(asked)
        first = ds.load(np.array([0, number, 1]))[field][1]
        np.testing.assert_array_equal(first, sound)
        seconds = 1.25 + (3.3 if rate else 0) + 0.6
        assert stop - start <= seconds / (60 * minutes) * len(data) + 20_000
