"""Keeping a directory small: of the files that match a pattern, those changed last stay."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
from pathlib import Path
from typing import IO, Self

from shardwise.compat.wids.gone import finder

__getattr__ = finder(__name__)


def keep_most_recent_files(
    pattern: str,
    maxsize: int = 10**12,
    maxfiles: int = 1000,
    debug: bool = False,  # noqa: ARG001 - nothing is printed
) -> None:
    """Remove the oldest of the files that match a glob, until few and small enough are left."""
    found = []
    for name in glob.glob(pattern):  # noqa: PTH207 - a pattern as the user writes it
        try:
            stat = os.stat(name)  # noqa: PTH116
        except FileNotFoundError:
            continue
        found.append((stat.st_mtime_ns, name, stat.st_size))
    total = 0
    for number, (_, name, size) in enumerate(sorted(found, reverse=True)):
        total += size
        if total > maxsize or number >= maxfiles:
            Path(name).unlink(missing_ok=True)


class ExclusiveLock:
    """A lock between processes, as a `with` block; its file stays, so that there is only one."""

    def __init__(self, lockfile: str | os.PathLike[str]) -> None:
        self.lockfile = os.fspath(lockfile)
        self._file: IO[str] | None = None

    def _lock(self, how: int) -> None:
        file = open(self.lockfile, "a", encoding="utf-8")  # noqa: SIM115 - until release_lock
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            file.close()
            raise
        self._file = file

    def try_lock(self) -> bool:
        """Take the lock; False if another holder has it."""
        with contextlib.suppress(BlockingIOError):
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def release_lock(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self._lock(fcntl.LOCK_EX)
        return self

    def __exit__(self, *_error: object) -> None:
        self.release_lock()
