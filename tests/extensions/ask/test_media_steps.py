"""`loader.explain` of clips and segments: the samples whose files they are parts of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

import shardwise as sw
from shardwise.dataset import Dataset
from shardwise.testing import assert_batches_equal

VIDEOS = ("b_frames", "one_key", "sound")
ROWS = [{"offset": 0.5, "duration": 1.0}, {"offset": 2.0, "duration": 1.0}]


@pytest.fixture(scope="module")
def videos(media_files, tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(2):
        with sw.TarWriter(folder / f"{number}.tar", media=True) as writer:
            for name in VIDEOS:
                key, data = f"{number}{name}", media_files.read(name)
                writer.write({"__key__": key, "mp4": data, "cls": number})
    return sw.tar(str(folder)).subset([5, 0, 3, 1]).clips("mp4", frames=4, step=16, size=24)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("sounds")
    for number in range(2):
        soundfile.write(folder / "a.flac", np.zeros(64000), 16000, subtype="PCM_16")
        with sw.TarWriter(folder / f"{number}.tar", media=True) as writer:
            for key in "abc":
                data = (folder / "a.flac").read_bytes()
                sample = {"__key__": f"{key}{number}", "flac": data, "json": {"cuts": ROWS}}
                writer.write(sample)
    return sw.tar(str(folder)).segments("flac", cuts="json.cuts")


@pytest.mark.parametrize("kind", ["clips", "segments", "joined clips", "mixed clips"])
def test_the_files_of_every_batch_are_named(kind: str, videos: Dataset, sounds: Dataset) -> None:
    data = {
        "clips": videos,
        "segments": sounds,
        "joined clips": sw.concat([videos, videos]),
        "mixed clips": sw.mix({"a": (videos, 1), "b": (videos, 1)}, until=24, block=4),
    }[kind]
    options = {"shuffle": True} if kind != "mixed clips" else {}
    loader = sw.DataLoader(data, 2, executor="inline", output="numpy", world_size=2, rank=0,
                           **options)  # fmt: skip
    for number, batch in enumerate(loader):
        step = loader.explain(number)
        assert_batches_equal(loader.batch_at(number), batch)
        assert step.ids.tolist() == batch["__index__"].tolist()
        for row, (key, url, span) in enumerate(
            zip(step.keys, step.urls, step.byte_ranges, strict=True)
        ):
            owner = batch["__key__"][row].partition(":")[0]
            assert key == batch["__key__"][row]
            if kind != "segments":
                assert batch["__media__"][row]["url"] == url
            names = sw.tar(url)
            at = next(i for i in range(3) if names[i]["__key__"] == owner)
            assert span is not None
            stored = Path(url).read_bytes()[slice(*span)]
            field = "flac" if kind == "segments" else "mp4"
            assert names[at][field] in stored
    place = loader.places_of(int(loader.explain(1, epoch=0).ids[0]), epochs=range(1))
    assert (0, 1, 0, 0) in [tuple(each) for each in place]


def test_no_video_is_decoded_for_it(videos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwise.extensions.media.clips.source import ClipSource

    def refuse(*args: object) -> None:
        raise AssertionError("a video was read")

    loader = sw.DataLoader(videos, 4, executor="inline", output="numpy")
    monkeypatch.setattr(ClipSource, "_read_clips", refuse)
    assert len(loader.explain(1).to_dict()["keys"]) == 4
