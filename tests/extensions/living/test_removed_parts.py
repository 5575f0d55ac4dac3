"""Removed samples in joins and clips: their parts keep their ids, and are not read."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.dataset import Dataset
from tests.support.commands import run


def redact(data: Path, *keys: str) -> None:
    listed = data.parent / "keys.txt"
    listed.write_text("\n".join(keys))
    run("redact", data, "--keys", listed)


def ids_of(data: Dataset, **options: object) -> list[int]:
    loader = sw.DataLoader(data, 2, executor="inline", rank=0, world_size=1, output="numpy",
                           remainder="uneven", **options)  # fmt: skip
    ids = [i for batch in loader for i in batch["__index__"].tolist()]
    assert loader.stats()["removed"] == len(data) - len(ids)
    return sorted(ids)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_leaves_out_what_its_left_lost_and_keeps_all_ids(tmp_path: Path, how: str) -> None:
    for name, keys in (("images", "abcdef"), ("captions", "fedcba")):
        with sw.TarWriter(tmp_path / name / "x-{shard:02d}.tar", max_samples=4) as writer:
            for key in keys:
                writer.write({"__key__": key, "txt" if name == "captions" else "bin": key})

    def join() -> Dataset:
        images, captions = (sw.tar(str(tmp_path / name)) for name in ("images", "captions"))
        return sw.join(images, captions, how=how)

    fingerprint = join().fingerprint
    redact(tmp_path / "images", "b", "e")
    assert join().fingerprint == fingerprint
    assert ids_of(join(), shuffle=True) == [0, 2, 3, 5]
    assert join()[3]["txt"] == b"d"
    redact(tmp_path / "captions", "a", "c")
    assert len(join()) == (6 if how == "left" else 4)
    kept = {"inner": ["d", "f"], "left": ["a", "c", "d", "f"]}
    assert [sample["__key__"] for sample in join()] == kept[how]


def test_clips_of_removed_videos_are_not_read(media_files, tmp_path: Path) -> None:
    with sw.TarWriter(tmp_path / "data" / "0.tar", media=True) as writer:
        for key in "abc":
            writer.write({"__key__": key, "mp4": media_files.read("one_key")})

    def clips() -> Dataset:
        return sw.tar(str(tmp_path / "data")).clips("mp4", frames=4, step=32, size=24)

    before = clips()
    count = len(before) // 3
    redact(tmp_path / "data", "b")
    assert clips().fingerprint == before.fingerprint
    assert ids_of(clips(), shuffle=True) == [*range(count), *range(2 * count, 3 * count)]
