"""Clips of videos in stores: one request a clip, of few more bytes than it needs."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.sources.tar.index.build import build_indexes
from shardwise.storage import StorageOptions, Upcoming
from tests.support.media import ffmpeg, numbers_in

NAMES = ("b_frames", "one_key", "open_gop")


def stored(s3, path, files):
    """The url of a shard of these files, with its index and its sidecar."""
    with sw.TarWriter(path, media=True) as writer:
        for key, data in files.items():
            # What lies behind keeps requests of two videos apart.
            writer.write({"__key__": key, "mp4": data, "zz": bytes(1 << 20)})
    url = s3.put(f"clips/{path.name}", path.read_bytes())
    build_indexes([url], options=StorageOptions(config=s3.config))
    s3.put(f"clips/{path.name}.media", path.with_name(f"{path.name}.media").read_bytes())
    return url


@pytest.fixture
def url(s3, media_files, tmp_path):
    return stored(s3, tmp_path / "v.tar", {name: media_files.read(name) for name in NAMES})


def test_a_clip_is_one_request_and_few_bytes(s3, url, counted):
    ds = sw.tar(url, storage=s3.unhedged).select("mp4").clips("mp4", frames=8, step=25)
    assert len(ds) == 9
    ds[0]  # the shard's index is opened
    for number in range(9):
        counted()
        loaded = ds.load(np.array([number]))
        found = counted()
        assert found["requests"] == 1
        media = loaded["__media__"][0]
        assert numbers_in(loaded["mp4"][0], "TCHW") == media["frames"]
        needed = ds.source._files["mp4"].index(number // 3).first("video")
        segments = needed.segments(np.array(media["frames"]))
        size = sum(int(needed.columns.size[part.samples].sum()) for part in segments)
        assert found["bytes"] <= 1.3 * size
    counted()
    ds.load(np.arange(9))
    # The clips of one video lie near each other.
    assert counted()["requests"] == 3


def test_opening_reads_the_sidecar_by_one_request(s3, url):
    source = sw.tar(url, storage=s3.unhedged).select("mp4")
    assert len(source) == 3
    before = len(s3.requests())
    source.clips("mp4", frames=8)
    names = [each["path"].rpartition("/")[2] for each in s3.requests()[before:]]
    assert [each["method"] for each in s3.requests()[before:] if "media" in each["path"]].count(
        "GET"
    ) == 1, names


def test_the_sound_of_a_clip_is_its_packets_and_256_kb_at_most(s3, tmp_path, counted):
    files = {}
    for codec, extension in (("aac", "mp4"), ("libmp3lame", "mp4"), ("libopus", "mkv")):
        path = tmp_path / f"{codec}.{extension}"
        sound = "-f lavfi -i color=s=32x32:r=25:d=40 -f lavfi -i anoisesrc=d=40:r=48000:a=0.5"
        options = f"-c:v libx264 -preset ultrafast -c:a {codec} -b:a 256k"
        ffmpeg(*sound.split(), *options.split(), str(path))
        files[codec] = path.read_bytes()
    ds = sw.tar(stored(s3, tmp_path / "s.tar", files), storage=s3.unhedged).select("mp4")
    clips = ds.clips("mp4", frames=50, count=1, audio="same")
    heard = clips.select("mp4.audio", "__media__")
    heard[0]  # the shard's index is opened
    for number in range(3):
        counted()
        loaded = heard.load(np.array([number]))
        found = counted()
        assert loaded["mp4.audio"][0].shape == (1, 96_000)
        track = clips.source._files["mp4"].index(number).first("audio")
        segment = int(track.columns.size.sum() * 2 / 40)
        assert segment + (256 << 10) < len(files[loaded["__key__"][0]]) / 2
        assert segment / 2 < found["bytes"] <= segment + (256 << 10)


def with_sounds(s3, path):
    """Segments of sounds of 12 s, in a shard whose payloads are far apart."""
    sound = path.with_suffix(".wav")
    ffmpeg("-f", "lavfi", "-i", "anoisesrc=d=12:r=16000:a=0.5", str(sound))
    with sw.TarWriter(path, media=True) as writer:
        for key in "ab":
            cuts = {"cuts": [{"offset": at, "duration": 2.0} for at in (0.0, 6.0)]}
            fields = {"wav": sound.read_bytes(), "json": cuts, "zz": bytes(1 << 20)}
            writer.write({"__key__": key, **fields})
    url = s3.put(f"sounds/{path.name}", path.read_bytes())
    build_indexes([url], options=StorageOptions(config=s3.config))
    s3.put(f"sounds/{path.name}.media", path.with_name(f"{path.name}.media").read_bytes())
    return sw.tar(url, storage=s3.unhedged).segments("wav", cuts="json.cuts").select("wav")


def with_windows(s3, path):
    """Windows of rows, each with a large payload that is not read."""
    with sw.TarWriter(path) as writer:
        for row in range(12):
            writer.write({"__key__": f"{row:03d}", "cls": row // 6, "zz": bytes(1 << 18)})
    url = s3.put(f"rows/{path.name}", path.read_bytes())
    build_indexes([url], options=StorageOptions(config=s3.config))
    rows = sw.tar(url, storage=s3.unhedged).decode(cls=sw.text()).select("cls")
    return sw.windows(rows, by="cls", deltas={"cls": [-1, 0]}, fps=1)


@pytest.mark.parametrize("kind", ["clips", "segments", "windows"])
def test_announced_reads_are_those_that_are_made(s3, tmp_path, kind, request):
    if kind == "clips":
        videos = sw.tar(request.getfixturevalue("url"), storage=s3.unhedged).select("mp4")
        ds = videos.clips("mp4", frames=8, step=25)
    else:
        ds = {"segments": with_sounds, "windows": with_windows}[kind](s3, tmp_path / f"{kind}.tar")
    ids = np.arange(len(ds))
    ds.load(ids[:1])  # the shard's index and sidecar are opened
    reads = [*ds.ranges(ids)]
    announced = sum(ends[-1] - begin for _, own in reads for _, _, ends, begin in own)
    assert announced > 0
    before, upcoming = len(s3.requests()), Upcoming()
    assert upcoming.announce("all", reads)
    ds.load(ids)
    upcoming.close()
    sent = sum(each["num_bytes"] for each in s3.requests()[before:] if each["method"] == "GET")
    # Had another range been read, its bytes would have come twice.
    assert announced <= sent < 1.2 * announced + 4096 * len(ids)
