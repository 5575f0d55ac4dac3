"""wids' `MMIndexedTar`: the members of a tar file by number or name, read by byte ranges.

Names of any length and any dialect of tar are right, and damage is an error (I6).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from shardwise.compat.wids.gone import finder
from shardwise.sources.tar.scan.members import scan_members
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import LocalFile, local_path

__getattr__ = finder(__name__)


class MMIndexedTar:
    """The regular files in a tar, by number or by name, which means the last one of the name."""

    def __init__(
        self,
        fname: str | os.PathLike[str] | IO[bytes],
        index_file: Any = None,  # noqa: ARG002
        verbose: bool = True,  # noqa: ARG002
        cleanup_callback: Callable[[str, int, str], object] | None = None,
    ) -> None:
        name = fname if isinstance(fname, str | os.PathLike) else getattr(fname, "name", None)
        if not isinstance(name, str | os.PathLike):
            raise TypeError(f"{fname!r} has no name: give a path or an open file of the disk")
        self.fname = local_path(name)
        self._file = LocalFile(self.fname)
        self.by_index = list(_members(self._file))
        self.by_name = {name: place for place, (name, _, _) in enumerate(self.by_index)}
        self.cleanup_callback = cleanup_callback
        self._held: IO[bytes] | None = None
        if cleanup_callback is not None:
            # A separate descriptor, for the callback to lock.
            self._held = open(self.fname, "rb")  # noqa: SIM115 - until close()
            cleanup_callback(self.fname, self._held.fileno(), "start")

    def close(self, dispose: bool = False) -> None:  # noqa: ARG002 - wids' signature
        if self._held is not None and self.cleanup_callback is not None:
            self.cleanup_callback(self.fname, self._held.fileno(), "end")
            self._held.close()
            self._held = None
        self._file.close()

    def names(self) -> list[str]:
        return [name for name, _, _ in self.by_index]

    def get_at_index(self, index: int) -> tuple[str, bytes]:
        name, offset, size = self.by_index[index]
        return name, self._file.read(offset, size)

    def get_by_name(self, name: str) -> tuple[str, bytes]:
        return self.get_at_index(self.by_name[name])

    def get_file(self, i: int) -> tuple[str, io.BytesIO]:
        name, data = self.get_at_index(i)
        return name, io.BytesIO(data)

    def __getitem__(self, key: int | str) -> tuple[str, bytes]:
        return self.get_at_index(key) if isinstance(key, int) else self.get_by_name(key)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return map(self.get_at_index, range(len(self)))

    def __len__(self) -> int:
        return len(self.by_index)


def _members(file: LocalFile) -> Iterator[tuple[str, int, int]]:
    """Name, where the payload starts, and its length."""
    num_bytes = file.stat().num_bytes
    scan = Scan(file, num_bytes, url=file.url)
    for members in scan_members(scan, Counter()):
        places = zip(members.offsets.tolist(), members.sizes.tolist(), strict=True)
        for row, (offset, size) in enumerate(places):
            yield members.name(row).decode("utf-8", "surrogateescape"), offset, size


def keep_while_reading(fname: str, fd: int, phase: str, delay: float = 0.0) -> None:
    """A `cleanup_callback` that removes a file when its last reader closes it."""
    if delay:
        raise ValueError(f"delay={delay}: files are removed at once, or not at all")
    if fd < 0 or fname is None:
        return
    if phase == "start":
        fcntl.flock(fd, fcntl.LOCK_SH)
    elif phase == "end":
        # A reader holds a lock; a faster process may have removed the file.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(fname).unlink(missing_ok=True)
    else:
        raise ValueError(f"phase={phase!r}: 'start' or 'end'")
