"""Scratch directories of this machine. What a killed process leaves, the next one here removes.

A directory is locked while it is in use, and the system ends the lock with the process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["scratch_directory"]

_PREFIX = "shardwise-build-"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """An empty directory for the length of a block; first those of killed processes are removed.

    Raises:
        OSError: the directory for temporary files can't be written to.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _sweep(left)
    path, lock = _locked()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _locked() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(path, _OPEN)
        except FileNotFoundError:
            continue  # it was swept before it was locked
        # Where the file system has no locks, nothing is swept.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        os.close(lock)


def _sweep(path: Path) -> None:
    """Remove a directory that no process holds."""
    try:
        lock = os.open(path, _OPEN)
    except OSError:
        return  # another user's, or just removed
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # in use, or without locks
    finally:
        os.close(lock)
