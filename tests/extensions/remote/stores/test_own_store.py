"""A store of one's own: registered, checked by the kit, read in worker processes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.storage import StorageOptions
from shardwise.stores import AttemptError, Client, FileStat, Reply, register
from shardwise.testing import check_store


class FolderClient(Client):
    """Objects are the files of a folder, which is named by an option."""

    def __init__(self, root: str, options: StorageOptions) -> None:
        self.folder = Path(options.settings()["folder"]) / root.partition("://")[2]

    def _stat(self, key: str) -> FileStat:
        try:
            stat = (self.folder / key).stat()
        except FileNotFoundError:
            raise AttemptError("no such object", "missing") from None
        return FileStat(stat.st_size, 0, f'"{stat.st_mtime_ns}-{stat.st_ino}"')

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        stat = self._stat(key)
        if etag and etag != stat.etag:
            raise AttemptError("another version", "changed")
        data = (self.folder / key).read_bytes()[start:stop]
        return Reply(memoryview(data), stat, 0.0)

    async def head(self, key: str) -> FileStat:
        return self._stat(key)

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        files = (p for p in self.folder.rglob("*") if p.is_file())
        names = sorted(str(p.relative_to(self.folder)) for p in files)
        found = [name for name in names if name.startswith(prefix)]
        if not delimiter:
            return found
        cut = [name[len(prefix) :].partition("/") for name in found]
        return sorted({prefix + head + slash for head, slash, _ in cut})

    async def put(self, key: str, source: bytes | Path) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}")
        part.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        part.rename(path)

    async def remove(self, key: str) -> None:
        (self.folder / key).unlink()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.storage.client._FACTORIES", {})
    register("folder", FolderClient)
    return tmp_path


def test_a_store_of_ones_own_passes_the_kit_also_in_a_worker_process(folder):
    check_store("folder://bucket/test", FolderClient, storage={"folder": str(folder)})


def test_the_kit_notices_a_store_that_hides_a_replaced_object(folder):
    class Forgetful(FolderClient):
        def _stat(self, key: str) -> FileStat:
            return super()._stat(key)._replace(num_bytes=10240, etag="")

    register("folder", Forgetful)
    with pytest.raises(AssertionError, match="version of the one before"):
        check_store("folder://bucket/test", Forgetful, storage={"folder": str(folder)})


def test_options_bring_the_stores_of_their_process_along(folder, monkeypatch):
    options = pickle.dumps(StorageOptions())
    monkeypatch.setattr("shardwise.storage.client._FACTORIES", {})
    assert pickle.loads(options) == StorageOptions()
    with pytest.raises(sw.MissingShardError, match="no such object"):
        len(sw.tar("folder://bucket/none.tar", storage={"folder": str(folder)}))


@pytest.mark.parametrize(
    ("scheme", "factory", "error"),
    [
        ("s3", FolderClient, "shardwise has a client for it"),
        ("Mem", FolderClient, "lower-case letters"),
        ("mem", None, "a function of"),
    ],
)
def test_what_is_no_store_is_refused(scheme, factory, error):
    with pytest.raises((TypeError, ValueError), match=error):
        register(scheme, factory)


def test_a_factory_that_returns_something_else_is_named(folder):
    register("folder", lambda root, options: object())
    with pytest.raises(TypeError, match="must return a shardwise"):
        len(sw.tar("folder://bucket/a.tar", storage={"folder": str(folder)}))
