"""A shard that is being written, and its headers: no file has its name before it is whole.

Headers are the standard library's, made faster for usual names.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import MissingShardError, ShardwiseError, StorageError
from shardwise.base.shown import shown
from shardwise.sources.tar.index.build import index_of, with_digests
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.scan.elsewhere import Members
from shardwise.sources.tar.scan.headers import BLOCK
from shardwise.sources.tar.scan.samples import SampleTable
from shardwise.storage import FileStat, StorageOptions, atomic_write, is_local, open_file
from shardwise.storage.write import upload

# Longer names and larger payloads do not fit into the plain fields of a header.
MAX_NAME, MAX_SIZE = 100, 8**11 - 1
# A header of no name and no bytes is all that does not differ between usual headers.
_MODEL = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
_BEFORE_SIZE, _BEHIND_SIZE, _BEHIND_SUM = _MODEL[100:124], _MODEL[135:148], _MODEL[155:]
# The digits of the size are summed up with it; the checksum counts as eight spaces.
_SUM = sum(_BEFORE_SIZE) + sum(_BEHIND_SIZE) + 7 * ord(" ") + sum(_BEHIND_SUM)


def header(name: str, size: int) -> bytes:
    """The header blocks of a regular file: ustar if it fits, else PAX."""
    raw = name.encode()
    if len(raw) > MAX_NAME or size > MAX_SIZE:
        return _header_by_tarfile(name, size)
    digits = b"%011o" % size
    checksum = _SUM + sum(raw) + sum(digits)
    return b"".join(
        (
            raw.ljust(MAX_NAME, b"\0"),
            _BEFORE_SIZE,
            digits,
            _BEHIND_SIZE,
            b"%06o\0" % checksum,
            _BEHIND_SUM,
        )
    )


def headers(names: NDArray[np.uint8], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The headers of regular files with usual names, uint8 `[n, 512]`."""
    made = np.empty((len(names), len(_MODEL)), np.uint8)
    made[:] = np.frombuffer(_MODEL, np.uint8)
    made[:, : names.shape[1]] = names
    digits = _octal(sizes, 11)
    made[:, 124:135] = digits
    sums = names.sum(axis=1, dtype=np.int64) + digits.sum(axis=1, dtype=np.int64) + _SUM
    made[:, 148:154] = _octal(sums, 6)
    return made


def _octal(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    shifts = np.arange(3 * width - 3, -1, -3)
    return ((numbers[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)


def _header_by_tarfile(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


# A member's name, where its payload starts, and the payload's bytes.
Member: TypeAlias = tuple[bytes, int, int]
# Members that are indexed at a time: as many as a scan meets in 1 MiB, at most.
_CHUNK = 1024

# A tar ends with two blocks of zeros. Padding to 10 KiB is for tapes, and is left out.
END = bytes(2 * BLOCK)
# The disk starts to write after this many bytes, so that the flush at the end waits for the last
# ones only.
_WRITEBACK_BYTES = 8 << 20
# Aligned writes of 64 KiB: with 1 MiB a call, ext4 on Linux 6.18 took 0.5 to 1.8 CPU seconds for
# 1,000 MB, and with 64 KiB always 0.5.
_WRITE_BYTES = 64 << 10


class PartialShard:
    """A shard that is being written: under a temporary name, or for a store in a nameless file.

    Its index is made of the members as they are added, and nothing is read back. It is the index
    that a scan of the finished shard would give.
    """

    def __init__(self, path: str, *, overwrite: bool, options: StorageOptions) -> None:
        self.path = path
        self.num_samples = 0
        self.num_bytes = 0
        self._num_sent = 0
        self._table = SampleTable(path, Counter())
        self._pending: list[Member] = []
        self._stack = contextlib.ExitStack()
        # Unbuffered: a process forked meanwhile would flush buffered bytes a second time.
        with _naming(path):
            if is_local(path):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                writing = atomic_write(path, buffering=0, overwrite=overwrite, fsync=False)
            else:
                writing = _open_upload(path, overwrite=overwrite, options=options)
            self._file: Any = self._stack.enter_context(writing)

    def add(self, data: bytes | memoryview, members: Sequence[Member], *, num_samples: int) -> None:
        """Write the members of samples, whose offsets count from the first byte of `data`."""
        self._write(data)
        at = self.num_bytes
        self._pending += [(name, offset + at, size) for name, offset, size in members]
        if len(self._pending) >= _CHUNK:
            self._index_pending()
        self.num_samples += num_samples
        self.num_bytes += len(data)
        if self.num_bytes - self._num_sent >= _WRITEBACK_BYTES:
            self._begin_writeback()

    def finish(self, *, digests: bool) -> ShardIndex:
        """Give the shard its name, if it can be indexed; returns its index."""
        try:
            self._write(END)
            with _naming(self.path):
                # Before the index takes the time: a network file system sets it with the data.
                os.fsync(self._file.fileno())
                status = os.fstat(self._file.fileno())
            self._index_pending()
            stat = FileStat(status.st_size, status.st_mtime_ns)
            index = index_of(self._table, stat, has_end=True)
            if digests:
                index = with_digests(index, open_file(_path_of(self._file)))
            with _naming(self.path):
                self._stack.close()
        except BaseException as error:
            self.remove(error)
            raise
        return index

    def remove(self, error: BaseException) -> None:
        self._stack.__exit__(type(error), error, error.__traceback__)

    def _index_pending(self) -> None:
        if self._pending:
            self._table.add(_members_of(*zip(*self._pending, strict=True)))
            self._pending = []

    def _begin_writeback(self) -> None:
        # Linux starts to write the dirty pages, which stay cached meanwhile.
        length = self.num_bytes - self._num_sent
        os.posix_fadvise(self._file.fileno(), self._num_sent, length, os.POSIX_FADV_DONTNEED)
        self._num_sent = self.num_bytes

    def _write(self, data: bytes | memoryview) -> None:
        rest, at = memoryview(data), self.num_bytes
        with _naming(self.path):
            while rest:
                done = self._file.write(rest[: _WRITE_BYTES - at % _WRITE_BYTES])
                rest, at = rest[done:], at + done


def _members_of(names: Sequence[bytes], offsets: Sequence[int], sizes: Sequence[int]) -> Members:
    """Members as arrays; at least one, and none with NUL in its name."""
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    width = -(-int(lengths.max()) // 8) * 8
    packed = np.array(names, f"S{width}").view(np.uint8).reshape(len(names), width)
    return Members(packed, lengths, np.array(offsets, np.int64), np.array(sizes, np.int64))


def _path_of(file: Any) -> str:
    """A path at which the bytes of an open file can be read, also if it has no name."""
    return f"/proc/self/fd/{file.fileno()}"


@contextlib.contextmanager
def _open_upload(url: str, *, overwrite: bool, options: StorageOptions) -> Iterator[Any]:
    """A nameless file, which goes to the store at the end; the system removes it after a kill."""
    if not overwrite:
        refuse_existing(url, options)
    with tempfile.TemporaryFile(buffering=0) as file:
        yield file
        if not overwrite:
            refuse_existing(url, options)
        upload(url, Path(_path_of(file)), options=options)


def refuse_existing(url: str, options: StorageOptions) -> None:
    """Raise FileExistsError if there is a file under a path or URL."""
    if is_local(url):
        exists = Path(url).exists()
    else:
        try:
            open_file(url, options=replace(options, cache=None)).stat()
            exists = True
        except MissingShardError:
            exists = False
    if exists:
        raise FileExistsError(f"{shown(url)!r} exists already: remove it, or pass overwrite=True")


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Turn an error of the operating system into one that names the shard."""
    try:
        yield
    except (FileExistsError, ShardwiseError):
        raise
    except OSError as error:
        raise StorageError(
            f"can't write the shard {path!r}: {error.strerror or error}; it was removed, the "
            "shards before it are whole"
        ) from error
