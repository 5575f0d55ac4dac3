"""A sidecar on a web server: taken once, then one block and one range of the shard a clip."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.tar import build
from shardwise.extensions.media.tar.build import fresh_index, open_sidecar
from shardwise.sources.tar.index.index_store import IndexStore, open_uncached
from shardwise.storage import StorageOptions
from tests.support.media import numbers_in
from tests.support.servers import nginx

NAMES = ["b_frames", "hevc", "vp9"]
# A busy machine is late, and its requests would be sent twice.
ONCE = StorageOptions(hedge=False)


class Member:
    """One member of a far shard as a media file."""

    def __init__(self, url: str, offset: int, size: int) -> None:
        self._file, self._offset, self.num_bytes = open_uncached(url, ONCE), offset, size

    def holds(self, start: int, stop: int) -> bool:
        return start == stop

    def read(self, start: int, stop: int) -> bytes:
        return self._file.read(self._offset + start, stop - start)


@pytest.fixture
def web(media_files, tmp_path):
    folder = tmp_path / "web"
    folder.mkdir()
    with sw.TarWriter(folder / "v.tar", media=True) as writer:
        for name in NAMES:
            writer.write({"__key__": name, "mp4": media_files.read(name)})
    with nginx(folder) as server:
        yield server, folder


@pytest.mark.parametrize(("whole_bytes", "asked_for"), [(64 << 20, []), (0, ["/v.tar.media"])])
def test_a_clip_of_a_far_shard_is_one_request_and_one_for_its_block_of_a_large_sidecar(
    web, monkeypatch, whole_bytes, asked_for
):
    server, _ = web
    monkeypatch.setattr(build, "_MAX_WHOLE_BYTES", whole_bytes)
    url, store = f"{server.url}/v.tar", IndexStore(options=ONCE)
    sidecar = open_sidecar(url, store=store)
    index = fresh_index(url, store)
    assert sidecar.header.fields == ("mp4",)
    for row in (1, 0, 2):
        ((offset, size),) = index.locate_one(("mp4",), row)
        member = Member(url, offset, size)
        before = len(server.requests())
        media = sidecar.index(row, "mp4")
        clip = decode_frames(member, media, np.array([30, 34]), form=form_of(media, layout="THWC"))
        assert numbers_in(clip) == [30, 34]
        asked = [seen for seen in server.requests()[before:] if seen["method"] == "GET"]
        assert [seen["path"] for seen in asked] == [*asked_for, "/v.tar"]
        assert sum(seen["num_bytes"] for seen in asked) < size


def test_a_far_shard_without_a_sidecar_has_none_and_another_ones_is_refused(web):
    server, folder = web
    sidecar = (folder / "v.tar.media").read_bytes()
    (folder / "v.tar.media").unlink()
    assert open_sidecar(f"{server.url}/v.tar", store=IndexStore()) is None
    with sw.TarWriter(folder / "w.tar", media=True) as writer:
        writer.write({"__key__": "a", "mp4": sw.tar(str(folder / "v.tar"))[0]["mp4"]})
    (folder / "w.tar.media").write_bytes(sidecar)
    with pytest.raises(sw.StaleIndexError, match="another version"):
        open_sidecar(f"{server.url}/w.tar", store=IndexStore())
