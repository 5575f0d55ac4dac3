"""Other schemes, by fsspec."""

from __future__ import annotations

import hashlib
import random
import time
from typing import ClassVar

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from shardwise.base.errors import StaleIndexError, StorageError
from shardwise.storage import StorageOptions, open_file, read_whole
from shardwise.storage.options import CacheSettings
from tests.support.io_counts import counted_io

CONTENT = bytes(range(256)) * 100


class Faulty(MemoryFileSystem):
    """The memory file system, that fails as it's told."""

    protocol = "faulty"
    cachable = False
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    failures: ClassVar = []

    def __init__(self, *, password=None, **options):
        if password is not None:
            raise RuntimeError(f"the password {password} is wrong")
        super().__init__(**options)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("faulty://", "memory://"))

    def cat_file(self, path, start=None, end=None, **options):
        if Faulty.failures:
            failure = Faulty.failures.pop()
            if failure == "short":
                return super().cat_file(path, start, end - 1)
            if failure == "stall":
                time.sleep(1.5)
            else:
                raise failure
        return super().cat_file(path, start, end)


@pytest.fixture
def url():
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    Faulty.failures = []
    Faulty().pipe_file("/d/x.tar", CONTENT)
    return "faulty://d/x.tar"


def test_failures_pass_and_short_replies_are_asked_for_again(url):
    Faulty.failures = [OSError("away"), "short", RuntimeError("plug-in")]
    assert open_file(url).read(5, 5) == CONTENT[5:10]
    assert Faulty.failures == []


def test_an_attempt_that_hangs_ends(url):
    Faulty.failures = ["stall"]
    options = StorageOptions(attempt_timeout_s=0.5, hedge=False)
    assert open_file(url, options=options).read(5, 5) == CONTENT[5:10]


def test_no_access_is_final_and_its_text_is_not_shown(url):
    Faulty.failures = [PermissionError("token=S3CRET"), PermissionError("token=S3CRET")]
    with pytest.raises(StorageError, match="access denied") as caught:
        open_file(url).read(0, 1)
    assert "S3CRET" not in str(caught.value)
    assert len(Faulty.failures) == 1


def test_a_file_that_changes_is_noticed_when_it_is_looked_at(url):
    file = open_file(url)
    file.stat()
    Faulty().pipe_file("/d/x.tar", CONTENT + b"more")
    assert file.stat().num_bytes == len(CONTENT) + 4
    with pytest.raises(StaleIndexError):
        file.read(0, 1)


def test_a_long_file_is_read_in_sequence(url):
    content = random.Random(1).randbytes(50 << 20)
    Faulty().pipe_file("/d/long.bin", content)
    Faulty.failures = [OSError("away"), "short"]
    file = open_file("faulty://d/long.bin")
    file.pin(file.stat())
    step = 3 << 20
    found = [file.read(at, min(step, len(content) - at)) for at in range(0, len(content), step)]
    assert b"".join(found) == content
    assert not Faulty.failures


def test_no_request_for_a_file_that_is_read_whole_is_long(url, monkeypatch):
    # One of 20 MiB took longer than an attempt may, on a slow server, and each attempt anew.
    content = random.Random(1).randbytes(20 << 20)
    Faulty().pipe_file("/d/long.json", content)
    lengths = []

    def cat_file(self, path, start=None, end=None):
        lengths.append(end - start)
        return MemoryFileSystem.cat_file(self, path, start, end)

    monkeypatch.setattr(Faulty, "cat_file", cat_file)
    options = StorageOptions(hedge=False)
    assert read_whole("faulty://d/long.json", options=options) == content
    assert sum(lengths) == len(content)
    assert max(lengths) <= 8 << 20


def test_settings_go_to_the_file_system(url):
    options = StorageOptions.of({"account": "me", "password": "S3CRET"})
    with pytest.raises(StorageError, match="account, password") as caught:
        open_file(url, options=options).read(0, 1)
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize("way", ["modified", "ukey", None])
def test_versions_come_from_what_a_file_system_has(url, way, tmp_path, caplog):
    # Clients are kept by scheme.
    scheme = f"plain-{way or 'none'}"

    class Plain(Faulty):
        protocol = scheme
        modified = MemoryFileSystem.modified if way == "modified" else AbstractFileSystem.modified

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(path.replace(f"{scheme}://", "memory://"))

        def info(self, path, **options):
            found = super().info(path)
            return {name: found[name] for name in ("name", "size", "type")}

    if way == "ukey":
        Plain.ukey = lambda self, path: hashlib.sha256(self.cat_file(path)).hexdigest()
    fsspec.register_implementation(scheme, Plain, clobber=True)
    options = StorageOptions(cache=CacheSettings(tmp_path / "blocks"))
    with counted_io() as counted:
        file = open_file(f"{scheme}://d/x.tar", options=options)
        assert [file.read(3, 5) for _ in range(4)] == [CONTENT[3:8]] * 4
    told = [said for said in caplog.messages if "is not cached" in said]
    if way is None:
        # A cache that can't be used is told once, and counted.
        assert len(told) == 1
        assert counted["degraded"] == 4
        assert not file.stat().etag
    else:
        assert not told
        assert counted["hits"] == 3
        assert file.stat().etag


def test_a_file_is_opened_once_for_many_reads(url):
    opened = []

    class Opening(Faulty):
        protocol = "opening"
        cat_file = AbstractFileSystem.cat_file

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(path.replace("opening://", "memory://"))

        def open(self, path, *args, **options):
            opened.append(path)
            return super().open(path, *args, **options)

    fsspec.register_implementation("opening", Opening, clobber=True)
    file = open_file("opening://d/x.tar", options=StorageOptions(prefetch_bytes=0))
    assert [file.read(at, 7) for at in range(0, 300, 10)] == [
        CONTENT[at : at + 7] for at in range(0, 300, 10)
    ]
    assert len(opened) == 1
