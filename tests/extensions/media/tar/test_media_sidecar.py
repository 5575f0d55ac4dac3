"""The sidecar of a shard: written with it, made by the command, and held against it."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.tar.build import open_sidecar
from shardwise.sources.tar.index.index_store import IndexStore
from tests.support.commands import document, run
from tests.support.media import numbers_in


@pytest.fixture
def shard(media_files, tmp_path):
    path = tmp_path / "v.tar"
    with sw.TarWriter(path, media=True) as writer:
        writer.write({"__key__": "a", "mp4": media_files.read("b_frames"), "cls": 1})
        writer.write({"__key__": "b", "cls": 2})
        writer.write({"__key__": "c", "mkv": media_files.read("mkv"), "cls": 3})
    return path


def test_a_writer_writes_what_the_command_makes(shard):
    sidecar = shard.with_name("v.tar.media")
    written = sidecar.read_bytes()
    sidecar.unlink()
    document("index", "--media", shard)
    assert sidecar.read_bytes() == written


def test_a_clip_is_decoded_by_the_sidecar(shard, media_files):
    sidecar = open_sidecar(str(shard), store=IndexStore())
    assert sidecar.header.fields == ("mp4", "mkv")
    assert sidecar.index(1, "mp4") is None
    for row, field, name in ((0, "mp4", "b_frames"), (2, "mkv", "mkv")):
        index = sidecar.index(row, field)
        reader = BytesReader(media_files.read(name))
        clip = decode_frames(reader, index, np.array([44, 3]), form=form_of(index, layout="THWC"))
        assert numbers_in(clip) == [44, 3]


def test_a_writer_refuses_media_that_can_not_be_used(media_files, tmp_path):
    with sw.TarWriter(tmp_path / "v.tar", media=True) as writer:
        with pytest.raises(sw.DataError, match="cut") as caught:
            writer.write({"__key__": "a", "mp4": media_files.read("b_frames")[:5000]})
        assert (caught.value.key, caught.value.field) == ("a", "mp4")
        writer.write({"__key__": "a", "mp4": media_files.read("b_frames")})
    assert len(sw.tar(str(tmp_path / "v.tar"))) == 1
    with pytest.raises(ValueError, match="index=True"):
        sw.TarWriter(tmp_path / "w.tar", media=True, index=False)


def test_bad_media_are_listed_by_both_commands(media_files, tmp_path):
    path = tmp_path / "v.tar"
    good = media_files.read("b_frames")
    with sw.TarWriter(path) as writer:
        writer.write({"__key__": "bad", "mp4": good[:9000]})
        writer.write({"__key__": "empty", "mp4": b""})
        writer.write({"__key__": "good", "mp4": good})
        writer.write(
            {"__key__": "sound", "mp4": media_files.sound("t.m4a", "-c:a aac").read_bytes()}
        )
    found = document("index", "--media", path, exit_code=1)
    bad = found["bad_media"]
    assert [each["key"] for each in bad] == ["bad", "empty"]
    assert (found["num_built"], found["num_fresh"], found["num_sidecars"]) == (0, 1, 1)
    assert "1 sidecar written" in run("index", "--media", path, exit_code=1).stdout
    for _ in range(2):  # with the sidecar and without
        found = document("verify", "--media", path, exit_code=1)
        assert [(each["key"], each["offset"]) for each in found["problems"]] == [
            (each["key"], each["offset"]) for each in bad
        ]
        path.with_name("v.tar.media").unlink(missing_ok=True)


def test_changed_bytes_are_found_with_a_sidecar_and_by_decoding_without(shard, media_files):
    document("verify", "--media", shard)
    data = bytearray(shard.read_bytes())
    video = media_files.read("b_frames")
    at = data.index(video[:4000])
    data[at + 2000 : at + 2300] = bytes(300)
    with shard.open("r+b") as file:  # the same time of change does not matter: the index is remade
        file.write(data)
    document("index", shard)
    found = document("verify", "--media", shard, exit_code=1)
    assert [each["key"] for each in found["problems"]] == ["a"]
    assert "ones that were indexed" in found["problems"][0]["message"]
    shard.with_name("v.tar.media").unlink()
    found = document("verify", "--media", shard, exit_code=1)
    assert [each["key"] for each in found["problems"]] == ["a"]


def test_damage_from_before_the_sidecar_was_made_is_found_too(media_files, tmp_path):
    """An index knows where frames lie, not what is in them."""
    path = tmp_path / "v.tar"
    video = bytearray(media_files.read("b_frames"))
    columns = index_media(BytesReader(bytes(video))).first("video").columns
    begin, size = int(columns.offset[38]), int(columns.size[38])
    video[begin + 8 : begin + size] = bytes(size - 8)
    with sw.TarWriter(path, media=True) as writer:
        writer.write({"__key__": "good", "mp4": media_files.read("b_frames")})
        writer.write({"__key__": "bad", "mp4": bytes(video)})
    [found] = document("verify", "--media", path, exit_code=1)["problems"]
    assert found["key"] == "bad"
    assert "coded video frame 38" in found["message"]


def test_a_sidecar_of_another_shard_is_refused(shard, media_files):
    other = shard.with_name("w.tar")
    with sw.TarWriter(other) as writer:
        writer.write({"__key__": "a", "mp4": media_files.read("vfr"), "mkv": b"x"})
    shard.with_name("v.tar.media").rename(other.with_name("w.tar.media"))
    with pytest.raises(sw.StaleIndexError, match="another version"):
        open_sidecar(str(other), store=IndexStore())


def test_a_damaged_sidecar_is_refused(shard):
    sidecar = shard.with_name("v.tar.media")
    whole = sidecar.read_bytes()
    for at in (3, 17, 30, 150):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        sidecar.write_bytes(bytes(damaged))
        with pytest.raises(sw.DataError, match="media sidecar"):
            open_sidecar(str(shard), store=IndexStore())
