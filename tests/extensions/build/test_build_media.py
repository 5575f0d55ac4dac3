"""`sw.build(media=True)`: sidecars beside tar shards, the same ones as the command makes."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from tests.support.commands import document


def clip(item: dict[str, object]) -> dict[str, object]:
    return {"mp4": Path(str(item["path"])).read_bytes(), "cls": 1}


def items_of(folder: Path, *payloads: bytes) -> list[dict[str, object]]:
    paths = [folder / f"{number}.mp4" for number in range(len(payloads))]
    for path, payload in zip(paths, payloads, strict=True):
        path.write_bytes(payload)
    return [{"path": str(path)} for path in paths]


def sidecars(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.media")}


def test_the_sidecars_are_those_that_the_command_makes(media_files, tmp_path):
    video = media_files.read("b_frames")
    items = items_of(tmp_path, video, video, video)
    out = tmp_path / "out"
    sw.build(items, out / "{shard}.tar", map=clip, samples_per_shard=2, media=True, num_workers=0)
    written = sidecars(out)
    assert sorted(written) == ["0.tar.media", "1.tar.media"]
    for name in written:
        (out / name).unlink()
    document("index", "--media", out / "0.tar", out / "1.tar")
    assert sidecars(out) == written


def test_resharding_makes_the_sidecars_of_the_new_shards(media_files, tmp_path):
    video = media_files.read("b_frames")
    items = items_of(tmp_path, video, video)
    for name, media in (("direct", True), ("first", False)):
        pattern = tmp_path / name / "{shard}.tar"
        sw.build(items, pattern, map=clip, media=media, samples_per_shard=2, num_workers=0)
    first = sw.tar(str(tmp_path / "first" / "manifest.swm"))
    again = tmp_path / "again" / "{shard}.tar"
    sw.build(first, again, media=True, samples_per_shard=2, num_workers=0)
    assert not sidecars(tmp_path / "first")
    assert sidecars(tmp_path / "again") == sidecars(tmp_path / "direct") != {}


def test_a_folder_of_videos_becomes_shards_with_clips(media_files, tmp_path):
    video = media_files.read("b_frames")
    items_of(tmp_path, video, video[:5000], video)
    out = tmp_path / "out" / "{shard}.tar"
    options = ("--suffixes", ".mp4", "--media", "--on-error", "record", "--jobs", "0")
    report = document("convert", tmp_path, out, *options, exit_code=1)
    assert (report["out"], report["failed"]) == (2, {"DataError": 1})
    assert sorted(sidecars(tmp_path / "out")) == ["0.tar.media"]
    clips = sw.tar(str(tmp_path / "out" / "0.tar")).clips("video", frames=8, count=1)
    assert [sample["__media__"]["clip"] for sample in clips] == [0, 0]


def test_an_input_whose_media_are_cut_fails_and_the_others_have_a_sidecar(media_files, tmp_path):
    video = media_files.read("b_frames")
    items = items_of(tmp_path, video, video[:5000], video)
    out = tmp_path / "out"
    options = {"map": clip, "media": True, "num_workers": 0}
    report = sw.build(items, out / "{shard}.tar", on_error="record", **options)
    assert (report["out"], report["failed"]) == (2, {"DataError": 1})
    document("verify", "--media", out / "0.tar")
    with pytest.raises(sw.DataError, match="cut") as caught:
        sw.build(items, tmp_path / "raises" / "{shard}.tar", **options)
    assert (caught.value.key, caught.value.field) == ("00000001", "mp4")


def test_other_output_than_it_was_built_with_is_refused(media_files, tmp_path):
    items = items_of(tmp_path, media_files.read("b_frames"))
    out = tmp_path / "out" / "{shard}.tar"
    sw.build(items, out, map=clip, num_workers=0)
    with pytest.raises(sw.StateError, match="another build"):
        sw.build(items, out, map=clip, media=True, num_workers=0)
    with pytest.raises(ValueError, match=r"media=True.*parquet"):
        sw.build(items, tmp_path / "p" / "{shard}.parquet", map=clip, media=True, num_workers=0)
