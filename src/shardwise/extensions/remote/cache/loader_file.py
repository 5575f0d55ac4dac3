"""Files of loaders in the folder of a cache, which all its processes look at.

Each is locked while its loader uses it: an unlocked one is removed by the next process that evicts.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# The step that its loader has come to, and the number of blocks or uses, or PENDING.
HEAD = struct.Struct("<qq")
_ODD = 0x9E3779B97F4A7C15
PENDING = -1


def block_keys(digests: NDArray[np.uint64], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each block; two of a cache have the same once in 2**64 / blocks."""
    return digests + numbers.astype(np.uint64) * np.uint64(_ODD)


def keys_of_names(names: Sequence[str]) -> NDArray[np.uint64]:
    """The numbers of blocks by the names of their files."""
    digests = np.array([int(name[:16], 16) for name in names], np.uint64)
    return block_keys(digests, np.array([int(name[33:41], 16) for name in names], np.int64))


class LoaderFile:
    """A file of a loader in the folder of a cache, locked while it is used; raises OSError.

    Args:
        folder: of the cache.
        kind: the folder in that.
        lock: that of the cache, under which others remove unlocked files.
    """

    def __init__(
        self, folder: str, kind: str, lock: Callable[[], AbstractContextManager[object]]
    ) -> None:
        os.makedirs(f"{folder}/{kind}", exist_ok=True)  # noqa: PTH103
        self._path = Path(f"{folder}/{kind}/{uuid.uuid4().hex}")
        with lock():
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = open(descriptor, "r+b")  # noqa: SIM115
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.write(HEAD.pack(0, PENDING))
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), HEAD.size)
        self._lock = threading.Lock()
        self.is_filled = False

    def fill(self, contents: bytes, step: int, count: int) -> None:
        """Write the contents, unless it is closed; others see them when they are whole."""
        with self._lock:
            if not self._file.closed:
                self._file.write(contents)
                self._file.flush()
                HEAD.pack_into(self._map, 0, step, count)
                self.is_filled = True

    def move(self, step: int) -> None:
        """Note that all steps before this one were read."""
        with self._lock:
            if not self._file.closed:
                struct.pack_into("<q", self._map, 0, step)

    def close(self) -> None:
        """Expect nothing any more."""
        with self._lock:
            self._path.unlink(missing_ok=True)
            self._map.close()
            self._file.close()


def live_files(folder: str, kind: str) -> Iterator[Path]:
    """The files of loaders that are there; unlocked ones are removed."""
    for path in Path(f"{folder}/{kind}").glob("*"):
        try:
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield path
                else:
                    path.unlink()  # its loader is gone
        except OSError:
            continue
