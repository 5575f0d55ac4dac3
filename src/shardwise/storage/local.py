"""A local file, read by byte ranges.

Keeps I6: a range is read whole and of one version, or an error reports where the file ended or that
it was written to. A file that is renamed over another leaves the open one as it is; one that is
written in place has another length or time, which is looked at after reads, at most once in 10 ms.
The file is opened at the first read and opened again after a fork; an object owns each descriptor
and closes it when the last reader drops it, so no lock is needed, and `close` never interrupts a
read.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import stat as mode_bits
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardwise.base.counters import IO_COUNTS
from shardwise.base.errors import MissingShardError, ShardwiseError, StorageError
from shardwise.storage.protocol import FileStat
from shardwise.storage.versions import ends_early, require_same

# Reads bytes of the page cache only; without this flag, any read may wait.
_AT_ONCE: int | None = getattr(os, "RWF_NOWAIT", None)
# Not in the page cache, or the file system does not say.
_NOT_AT_ONCE = (errno.EAGAIN, errno.EOPNOTSUPP)
# Longer ranges are compared with the file's size before memory is allocated.
_CHECKED_BYTES = 64 << 20
# fstat costs 0.5 us, 8 % of reading a row of 2 kB, and a request on some network file systems.
LOOK_EVERY_NS = 10_000_000


def max_open_files() -> int:
    """The files that a set of shards may keep open: a quarter of the process's limit, 4 to 2,048.

    A window shuffle has some 1,000 shards in use at a time: where the limit (`ulimit -n`) is below
    5,000, some of them are opened again and again.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2048
    return most if soft == resource.RLIM_INFINITY else max(4, min(most, soft // 4))


class LocalFile:
    """A file on this machine, read at any offset by any thread; see `File` for what is raised.

    It may be made before the file exists, is opened at the first read, and is opened again in a
    forked child. It pickles by its name and version. The descriptor is closed by `close` or when
    the object is collected; a read in another thread that is under way ends well.
    """

    __slots__ = ("_opened", "_pinned", "url")

    is_remote = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.url = os.fspath(path)
        self._opened: _Descriptor | None = None
        self._pinned: FileStat | None = None

    def __repr__(self) -> str:
        return f"LocalFile({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.url, self._version)

    def open(self) -> None:
        self._descriptor()

    def stat(self, since: int = 0) -> FileStat:  # noqa: ARG002
        try:
            status = os.stat(self.url)  # noqa: PTH116 - twice as fast as by way of a Path
        except OSError as error:
            raise _explain_error(error, self.url, "look at") from None
        _require_regular(status, self.url)
        return FileStat(status.st_size, status.st_mtime_ns)

    def pin(self, stat: FileStat) -> None:
        opened, self._pinned = self._opened, stat
        if opened is not None:
            # If it is another one, reads open the file again, and compare it again.
            self._opened = None
            require_same(stat, opened.stat, self.url)
            self._opened = opened

    def check(self) -> None:
        """Look at the open file, for what is read from a map of it."""
        self._descriptor().check(self.url)

    def map(self) -> mmap.mmap:
        """All bytes of the open file, mapped; call `check` before and after they are read."""
        opened = self._descriptor()
        try:
            return mmap.mmap(opened.fd, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise _explain_error(error, self.url, "map") from None

    def read(self, offset: int, length: int) -> bytes:
        _check_range(offset, length)
        opened = self._descriptor()
        try:
            if length > _CHECKED_BYTES:
                opened.check(self.url)
                self._check_end(offset, length, opened.stat.num_bytes)
            data = os.pread(opened.fd, length, offset)
        except OSError as error:
            raise _explain_error(error, self.url, "read") from None
        if len(data) != length:
            # One call gives no more than 2 GiB, and may give less for other reasons.
            whole = bytearray(length)
            self._fill(opened, offset, memoryview(whole), done=0)
            data = bytes(whole)
        opened.check_read(self.url)
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        view = memoryview(buffer).cast("B")
        _check_range(offset, len(view))
        opened = self._descriptor()
        self._fill(opened, offset, view, done=0)
        opened.check_read(self.url)

    def read_spans(
        self, offsets: Sequence[int], ends: Sequence[int], buffer: memoryview, begin: int
    ) -> None:
        opened = self._descriptor()
        fd, preadv, flags = opened.fd, os.preadv, _AT_ONCE or 0
        num_waits = int(_AT_ONCE is None)
        try:
            for offset, end in zip(offsets, ends, strict=True):
                view = buffer[begin:end]
                try:
                    got = preadv(fd, [view], offset, flags)
                except OSError as error:
                    if error.errno not in _NOT_AT_ONCE:
                        raise
                    got = 0
                if got != end - begin:
                    num_waits += 1
                    self._fill(opened, offset, view, done=got)
                begin = end
        except OSError as error:
            if isinstance(error, ShardwiseError):
                raise
            raise _explain_error(error, self.url, "read") from None
        opened.check_read(self.url)
        if num_waits:
            IO_COUNTS.add(waits=num_waits)

    def close(self) -> None:
        self._opened = None

    def _fill(self, opened: _Descriptor, offset: int, view: memoryview, *, done: int) -> None:
        length = len(view)
        while done < length:
            try:
                got = os.preadv(opened.fd, [view[done:]], offset + done)
            except OSError as error:
                raise _explain_error(error, self.url, "read") from None
            if not got:
                # Cut since it was opened, rather than by who wrote it.
                opened.check(self.url)
                self._check_end(offset, length, min(opened.stat.num_bytes, offset + done))
            done += got

    def _check_end(self, offset: int, length: int, end: int) -> None:
        if end < offset + length:
            raise ends_early(offset, length, end, self.url)

    def _descriptor(self) -> _Descriptor:
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            version = self._version
            # If two threads open it, one of the descriptors closes itself.
            opened = _Descriptor(self.url)
            if version is not None:
                require_same(version, opened.stat, self.url)
            self._opened = opened
        return opened

    @property
    def _version(self) -> FileStat | None:
        """The one that is open, or was before a fork, or is pinned."""
        opened = self._opened
        return self._pinned if opened is None else opened.stat


def _rebuild(url: str, pinned: FileStat | None) -> LocalFile:
    file = LocalFile(url)
    file._pinned = pinned
    return file


class _Descriptor:
    """An open descriptor of this process, closed when the last reference to it goes."""

    __slots__ = ("_next_look_ns", "fd", "pid", "stat")

    def __init__(self, url: str) -> None:
        self.fd = -1
        self.pid = os.getpid()
        self._next_look_ns = 0
        try:
            # Non-blocking: a named pipe must be refused, not waited for.
            self.fd = os.open(url, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self.fd)
        except OSError as error:
            raise _explain_error(error, url, "open") from None
        _require_regular(status, url)
        self.stat = FileStat(status.st_size, status.st_mtime_ns)

    def check(self, url: str) -> None:
        """Raise StaleIndexError if the open file was written to."""
        status = os.fstat(self.fd)
        if status.st_mtime_ns != self.stat.mtime_ns or status.st_size != self.stat.num_bytes:
            require_same(self.stat, FileStat(status.st_size, status.st_mtime_ns), url)

    def check_read(self, url: str) -> None:
        """The same after a read, if the last look is `LOOK_EVERY_NS` ago."""
        now = time.monotonic_ns()
        if now >= self._next_look_ns:
            self.check(url)
            self._next_look_ns = now + LOOK_EVERY_NS

    def __del__(self) -> None:
        # The number may belong to another file by now, in a forked child.
        if self.fd >= 0 and self.pid == os.getpid():
            os.close(self.fd)


def _require_regular(status: os.stat_result, url: str) -> None:
    if not mode_bits.S_ISREG(status.st_mode):
        what = "a directory" if mode_bits.S_ISDIR(status.st_mode) else "not a regular file"
        raise StorageError(f"{url!r} is {what}: only files can be read by byte ranges")


def _check_range(offset: int, length: int) -> None:
    if offset < 0 or length < 0:
        raise ValueError(f"offset={offset}, length={length}: neither may be negative")


def _explain_error(error: OSError, url: str, verb: str) -> MissingShardError | StorageError:
    """The library's error for an operating system's."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MissingShardError(f"no such file{in_directory(url)}", url=url)
    advice = ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = ": raise the limit of open files (ulimit -n)"
    return StorageError(f"can't {verb} {url!r}: {error.strerror}{advice}")


def in_directory(path: str) -> str:
    """The directory that a relative path was looked up in, as a clause: it may have changed."""
    if Path(path).is_absolute():
        return ""
    try:
        return f" in the working directory {str(Path.cwd())!r}"
    except FileNotFoundError:
        return ": the working directory was deleted"
