import errno
import gc
import os
import pickle
import shutil
import threading
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError, StorageError
from shardwise.storage import FileStat, LocalFile, local_path, open_file
from shardwise.storage import local as local_module
from tests.support.forks import in_child
from tests.support.io_counts import counted_io
from tests.support.threads import at_once

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path):
    path = tmp_path.resolve() / "f#1 ?.tar"
    path.write_bytes(CONTENT)
    return str(path)


def descriptors_of(path):
    """How many descriptors of this process are open on a file."""
    return [file.path for file in psutil.Process().open_files()].count(path)


@settings(max_examples=50)
@given(offset=st.integers(0, len(CONTENT)), length=st.integers(0, len(CONTENT) + 10))
def test_a_range_is_read_exactly_or_the_error_says_where_the_file_ends(
    tmp_path_factory, offset, length
):
    path = tmp_path_factory.getbasetemp() / "ranges"
    path.write_bytes(CONTENT)
    file = LocalFile(path)
    buffer = bytearray(length)
    if offset + length <= len(CONTENT):
        assert file.read(offset, length) == CONTENT[offset : offset + length]
        file.read_into(offset, memoryview(buffer))
        assert bytes(buffer) == CONTENT[offset : offset + length]
        return
    there = len(CONTENT) - offset
    expected = f"asked for {length} bytes, there are {there}: the file ended at byte 10240 of "
    for read in (
        lambda: file.read(offset, length),
        lambda: file.read_into(offset, memoryview(buffer)),
    ):
        with pytest.raises(DataError, match=expected + str(offset + length)) as caught:
            read()
        assert caught.value.url == str(path)
        assert caught.value.offset == offset


def test_a_range_that_begins_past_the_end_says_where_the_end_is(path):
    with pytest.raises(DataError, match="there are 0: the file ended at byte 10240 of 20010"):
        LocalFile(path).read(20_000, 10)


def test_an_absurd_length_is_refused_before_memory_is_taken(path):
    with pytest.raises(DataError, match="truncated"):
        LocalFile(path).read(0, 1 << 55)


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1)])
def test_negative_ranges_are_refused(path, offset, length):
    with pytest.raises(ValueError, match="negative"):
        LocalFile(path).read(offset, length)


def test_short_reads_of_the_system_are_continued(path, monkeypatch):
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, n, o: pread(fd, min(n, 7), o))
    monkeypatch.setattr(os, "preadv", lambda fd, b, o: preadv(fd, [b[0][:7]], o))
    file = LocalFile(path)
    assert file.read(3, 1000) == CONTENT[3:1003]
    buffer = bytearray(1000)
    file.read_into(3, memoryview(buffer))
    assert bytes(buffer) == CONTENT[3:1003]


def test_buffers_of_any_item_type_are_filled(path):
    import numpy as np

    out = np.zeros((4, 8), dtype=np.int64)
    LocalFile(path).read_into(256, memoryview(out))
    assert out.tobytes() == CONTENT[256 : 256 + out.nbytes]


def test_a_file_is_opened_at_the_first_read_and_closed_with_its_object(path):
    file = LocalFile(path)
    assert file.stat() == FileStat(len(CONTENT), Path(path).stat().st_mtime_ns)
    assert descriptors_of(path) == 0
    file.read(0, 1)
    file.read(5, 1)
    assert descriptors_of(path) == 1
    file.close()
    assert descriptors_of(path) == 0
    assert file.read(1, 1) == CONTENT[1:2]
    del file
    gc.collect()
    assert descriptors_of(path) == 0


def test_descriptors_do_not_reach_programs_that_are_started(path):
    file = open_file(path)
    assert not os.get_inheritable(file._descriptor().fd)


def test_a_pickled_file_travels_without_its_descriptor(path):
    file = open_file(path)
    copy = pickle.loads(pickle.dumps(file))
    assert descriptors_of(path) == 1
    assert copy.read(0, 10) == CONTENT[:10]
    assert copy.url == path


def test_threads_read_while_others_close(path):
    file = LocalFile(path)
    stop = threading.Event()

    def read(seed):
        for i in range(150):
            offset = (seed * 977 + i * 131) % (len(CONTENT) - 64)
            assert file.read(offset, 64) == CONTENT[offset : offset + 64]

    def close():
        while not stop.is_set():
            file.close()

    closer = threading.Thread(target=close)
    closer.start()
    try:
        at_once(read, 4)
    finally:
        stop.set()
        closer.join()
    file.close()
    assert descriptors_of(path) == 0


def test_a_forked_child_opens_the_file_anew_and_leaves_the_old_number_alone(path, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"!" * 100)
    file = open_file(path)
    fd = file._descriptor().fd

    def child():
        # As in a process that closed all descriptors: the number is another file's now.
        os.dup2(os.open(other, os.O_RDONLY), fd)
        same = file.read(0, 16) == CONTENT[:16]
        gc.collect()
        return same and os.pread(fd, 3, 0) == b"!!!"

    assert in_child(child)
    assert file.read(0, 16) == CONTENT[:16]


def test_a_file_is_read_of_one_version(path, monkeypatch):
    monkeypatch.setattr(local_module, "LOOK_EVERY_NS", 0)
    file, mapped = LocalFile(path), LocalFile(path)
    first = file.stat()
    assert file.read(0, 4) == CONTENT[:4]
    assert mapped.map()[:4] == CONTENT[:4]
    with open(path, "r+b") as stream:
        stream.write(b"else")
    os.utime(path, ns=(0, first.mtime_ns + 1))
    buffer = memoryview(bytearray(4))
    for read in (
        lambda: file.read(0, 4),
        lambda: file.read_into(0, buffer),
        lambda: file.read_spans([0], [4], buffer, 0),
        mapped.check,
    ):
        with pytest.raises(StaleIndexError, match="replaced while it was in use") as caught:
            read()
        assert caught.value.url == path
    # Opened anew, by itself or in another process, it is the new one, unless it is pinned.
    file.close()
    assert file.read(0, 4) == b"else"
    with pytest.raises(StaleIndexError, match="replaced while it was in use"):
        file.pin(first)
    for pinned in (LocalFile(path), pickle.loads(pickle.dumps(file))):
        pinned.pin(first)
        with pytest.raises(StaleIndexError, match="replaced while it was in use"):
            pinned.open()


def test_a_long_range_of_a_file_that_is_cut_is_of_another_version(path):
    long = 65 << 20  # such ranges are compared with the file's size first
    os.truncate(path, long)
    file = LocalFile(path)
    file.open()
    os.truncate(path, 1 << 20)
    with pytest.raises(StaleIndexError, match="replaced while it was in use") as caught:
        file.read(0, long)
    assert caught.value.url == path


def test_a_file_that_is_open_is_not_read_after_another_version_was_pinned(path):
    file = LocalFile(path)
    assert file.read(0, 2) == b"\0\1"
    stat = file.stat()
    with pytest.raises(StaleIndexError):
        file.pin(stat._replace(mtime_ns=stat.mtime_ns - 1))
    for _ in range(2):
        with pytest.raises(StaleIndexError):
            file.read(0, 2)
    file.pin(stat)
    assert file.read(0, 2) == b"\0\1"


def test_a_copy_and_a_forked_child_read_the_version_that_was_open(path):
    file = LocalFile(path)
    file.open()
    os.replace(shutil.copy(path, f"{path}.new"), path)
    os.utime(path, ns=(0, 10**18))
    with pytest.raises(StaleIndexError):
        pickle.loads(pickle.dumps(file)).read(0, 2)
    # In a forked child, the process has another id.
    file._opened.pid -= 1
    for _ in range(2):
        with pytest.raises(StaleIndexError):
            file.read(0, 2)


def test_a_missing_file_is_a_missing_shard_with_its_url(tmp_path):
    missing = str(tmp_path / "no.tar")
    for use in (open_file, lambda p: LocalFile(p).read(0, 1), lambda p: LocalFile(p).stat()):
        with pytest.raises(MissingShardError, match=r"no such file .*no\.tar") as caught:
            use(missing)
        assert caught.value.url == missing
        assert isinstance(caught.value, FileNotFoundError)
    inside = tmp_path / "file"
    inside.touch()
    with pytest.raises(MissingShardError):
        open_file(inside / "x.tar")


def test_a_relative_path_that_is_missing_is_told_with_its_directory(path, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(path).parent)
    file = LocalFile(Path(path).name)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(MissingShardError, match=f"in the working directory '{elsewhere}'"):
        file.read(0, 1)
    elsewhere.rmdir()
    with pytest.raises(MissingShardError, match="the working directory was deleted"):
        LocalFile(Path(path).name).read(0, 1)


def test_directories_and_pipes_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for use in (open_file, lambda p: LocalFile(p).stat()):
        with pytest.raises(StorageError, match="is a directory"):
            use(tmp_path)
        with pytest.raises(StorageError, match="not a regular file"):
            use(tmp_path / "pipe")


def test_a_process_out_of_descriptors_is_told_of_the_limit(path, monkeypatch):
    def no_more(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(local_module.os, "open", no_more)
    with pytest.raises(StorageError, match=r"Too many open files.*ulimit"):
        LocalFile(path).read(0, 1)


def test_an_error_of_the_disk_is_a_storage_error_that_names_the_file(path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    file = open_file(path)
    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(StorageError, match=r"can't read .*Input/output error"):
        file.read(0, 10)
    with pytest.raises(StorageError, match=r"can't read .*Input/output error"):
        file.read_into(0, memoryview(bytearray(4)))


def test_open_file_takes_paths_and_file_urls(path, tmp_path, monkeypatch):
    assert open_file(tmp_path / "f#1 ?.tar").read(0, 2) == CONTENT[:2]
    assert open_file((tmp_path / "f#1 ?.tar").as_uri()).read(0, 2) == CONTENT[:2]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_file("~/f#1 ?.tar").url == path


@pytest.mark.parametrize("url", ["s3://b/x.tar", "pipe:cat x.tar", "HTTP://h/x.tar"])
def test_a_local_path_is_not_made_of_other_urls(url):
    with pytest.raises(StorageError, match="is not a local file"):
        local_path(url)


def test_an_escaped_nul_is_refused_by_name():
    with pytest.raises(StorageError, match="'file:///a%00' holds a NUL"):
        local_path("file:///a%00")


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EOPNOTSUPP, None])
def test_bytes_that_are_not_at_hand_are_waited_for_and_counted(tmp_path, monkeypatch, error):
    data = bytes(range(256)) * 40
    path = tmp_path / "f"
    path.write_bytes(data)
    real = os.preadv

    def preadv(fd, buffers, offset, flags=0):
        if not flags:
            return real(fd, buffers, offset)
        if error:
            raise OSError(error, os.strerror(error))
        return real(fd, [buffers[0][: len(buffers[0]) // 2]], offset)

    monkeypatch.setattr("shardwise.storage.local._AT_ONCE", 8)
    monkeypatch.setattr(os, "preadv", preadv)
    buffer = bytearray(300)
    with counted_io() as counts:
        LocalFile(path).read_spans([7, 5000], [100, 300], memoryview(buffer), 0)
    assert bytes(buffer) == data[7:107] + data[5000:5200]
    assert counts["waits"] == 2
    with pytest.raises(DataError, match="truncated"):
        LocalFile(path).read_spans([len(data) - 5], [10], memoryview(buffer), 0)
