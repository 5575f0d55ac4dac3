"""Other schemes, by fsspec."""

from __future__ import annotations

import pickle
import random
import time
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shardwise.errors import DataError, MissingShardError, StaleIndexError, StorageError
from shardwise.storage import StorageOptions, open_file

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


def test_ranges_have_their_bytes(url):
    file = open_file(url)
    assert file.read(100, 50) == CONTENT[100:150]
    buffer = bytearray(12)
    file.read_spans([0, 25_000], [4, 12], memoryview(buffer), 0)
    assert buffer == CONTENT[:4] + CONTENT[25_000:25_008]
    assert file.stat().num_bytes == len(CONTENT)
    assert pickle.loads(pickle.dumps(file)).read(0, 3) == CONTENT[:3]


def test_what_is_missing_or_ends_early_is_told(url):
    with pytest.raises(MissingShardError):
        open_file("faulty://d/none.tar").read(0, 1)
    for offset in (len(CONTENT) - 1, len(CONTENT) + 5):
        with pytest.raises(DataError, match="ended at byte 25600"):
            open_file(url).read(offset, 2)


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


def test_settings_go_to_the_file_system(url):
    options = StorageOptions.of({"account": "me", "password": "S3CRET"})
    with pytest.raises(StorageError, match="account, password") as caught:
        open_file(url, options=options).read(0, 1)
    assert "S3CRET" not in str(caught.value)
