"""Where the time of media goes: a loader counts "demux", "decode" and "convert" apart."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import shardwise as sw
from tests.codecs.samples import encode

EXECUTORS = {
    "inline": {"executor": "inline"},
    "threads": {"num_threads": 2},
    "processes": {"num_workers": 2},
}
MEDIA = {"demux", "decode", "convert"}


@pytest.fixture(scope="module")
def videos(media_files, tmp_path_factory):
    path = tmp_path_factory.mktemp("stages") / "v.tar"
    with sw.TarWriter(path, media=True) as writer:
        for name in ("b_frames", "one_key", "sound"):
            writer.write({"__key__": name, "mp4": media_files.read(name)})
    return sw.tar(path).select("mp4")


def loaded(data, **options):
    """Batches, and the seconds by stage."""
    options = {"batch_size": 2, "rank": 0, "world_size": 1, "output": "numpy", **options}
    with sw.DataLoader(data, **options) as loader:
        batches = list(loader)
        return batches, loader.stats()["seconds"]


def first_pixels(sample):
    return {"first": sample["mp4"][0].copy()}


KINDS = {
    "decoded": lambda data: data.decode(mp4=sw.video(4, size=(60, 80))),
    "of its own size": lambda data: data.decode(mp4=sw.video(4)),
    "drawn": lambda data: data.decode(mp4=sw.video(4, start="random", size=(60, 80))),
    "clips": lambda data: data.clips("mp4", frames=4, step=30, size=(60, 80)),
    "mapped": lambda data: data.decode(mp4=sw.video(4, size=32)).map(first_pixels),
    "mixed": lambda data: sw.concat(
        [data.decode(mp4=sw.video(4, size=32)), data.decode(mp4=sw.video(4, size=32))]
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_video_has_all_three_stages_and_no_second_twice(videos, kind):
    began = time.perf_counter()
    _, seconds = loaded(KINDS[kind](videos), executor="inline")
    passed = time.perf_counter() - began
    assert all(seconds[stage] > 0 for stage in MEDIA)
    assert sum(seconds.values()) <= passed


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ["clips", "mapped"])
def test_threads_and_processes_count_them_too(videos, executor, kind):
    _, seconds = loaded(KINDS[kind](videos), **EXECUTORS[executor])
    assert all(seconds[stage] > 0 for stage in MEDIA)
    assert ("transform" in seconds) == (kind == "mapped")


def test_stages_take_the_place_of_seconds_of_decoding(videos, monkeypatch):
    """By a clock that each look moves on by one second, the sum is as long as the load."""
    data = KINDS["clips"](videos)
    data.load(np.arange(len(data)))

    class Counted:
        def __init__(self):
            self.seconds: dict[str, float] = {}

        def add(self, stage: str, seconds: float, num_bytes: int = 0) -> None:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    looks: list[float] = []
    real, here = time.perf_counter, threading.get_ident()

    def clock() -> float:
        if threading.get_ident() != here:
            return real()
        looks.append(len(looks))
        return looks[-1]

    monkeypatch.setattr(time, "perf_counter", clock)
    counted = Counted()
    data.load(np.arange(len(data)), stats=counted)
    monkeypatch.undo()
    assert set(counted.seconds) == MEDIA | {"read"}
    assert sum(counted.seconds.values()) == looks[-1] - looks[0]


def test_pictures_report_decode_alone(tmp_path):
    with sw.TarWriter(tmp_path / "p.tar") as writer:
        for number in range(4):
            picture = np.full((20, 20, 3), number, np.uint8)
            writer.write({"__key__": f"{number}", "png": encode(picture, "PNG")})
    data = sw.tar(tmp_path / "p.tar").decode(png=sw.image(size=16))
    _, seconds = loaded(data, executor="inline")
    assert seconds["decode"] > 0
    assert not {"demux", "convert"} & set(seconds)


def test_what_a_function_decodes_by_itself_is_transforming(videos):
    decoder = sw.video(4, size=32)
    data = videos.map(lambda sample: {"mp4": decoder(sample["mp4"])})
    _, seconds = loaded(data, executor="inline")
    assert seconds["transform"] > 0
    assert not {"demux", "convert"} & set(seconds)


def test_the_sound_of_clips_counts_what_it_reads(media_files, tmp_path):
    with sw.TarWriter(tmp_path / "v.tar", media=True) as writer:
        writer.write({"__key__": "sound", "mp4": media_files.read("sound")})
    data = sw.tar(tmp_path / "v.tar").select("mp4").clips("mp4", frames=4, audio="same")
    _, seconds = loaded(data.select("mp4.audio"), executor="inline", batch_size=1)
    assert seconds["demux"] > 0
    assert seconds["decode"] > 0
    resampled = sw.tar(tmp_path / "v.tar").select("mp4").decode(mp4=sw.audio(rate=8000))
    _, seconds = loaded(resampled, executor="inline", batch_size=1)
    assert all(seconds[stage] > 0 for stage in MEDIA)
