"""Files of loaders in the folder of a cache, and one kind of them: which node holds which block.

Each is locked while its loader uses it: an unlocked one is ignored, and the next loader removes it.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.uses import NEVER

# The step that its loader has come to, and the number of uses or blocks; 0 until they are there.
HEAD = struct.Struct("<qq")
_ODD = 0x9E3779B97F4A7C15
# A block's key; the nodes that hold it from its first read in this epoch on, held it before, and
# have it from an earlier job, -1 for none; and the step up to which this node holds it, else -1.
HOME = np.dtype("<u8,<i4,<i4,<i4,<i8")
HOME.names = "key", "home", "before", "warm", "use"
# Added to the steps of blocks that another node holds: they are evicted before this node's blocks.
_FAR = 1 << 60


def block_keys(digests: NDArray[np.uint64], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each block; two of a cache have the same once in 2**64 / blocks."""
    return digests + numbers.astype(np.uint64) * np.uint64(_ODD)


def keys_of_names(names: Sequence[str]) -> NDArray[np.uint64]:
    """The numbers of blocks by the names of their files."""
    digests = np.array([int(name[:16], 16) for name in names], np.uint64)
    return block_keys(digests, np.array([int(name[33:41], 16) for name in names], np.int64))


class LoaderFile:
    """A file of a loader, in the folder `kind` of a cache; raises OSError.

    `lock` is that of the cache: under it new files appear, and unlocked ones are removed.
    """

    def __init__(
        self, folder: str, kind: str, lock: Callable[[], AbstractContextManager[object]]
    ) -> None:
        os.makedirs(f"{folder}/{kind}", exist_ok=True)  # noqa: PTH103
        self._path = Path(f"{folder}/{kind}/{uuid.uuid4().hex}")
        self._lock, self.is_filled = threading.Lock(), False
        with lock():
            live_files(folder, kind, remove_dead=True)
            # Homes have the token of the job.
            self._path.touch(0o600 if kind == "homes" else 0o666, exist_ok=False)
            self._file = self._path.open("r+b")
            self._file.write(HEAD.pack(0, 0))
            self._file.flush()
            fcntl.flock(self._file, fcntl.LOCK_EX)  # last: others read what is locked
        self._map = mmap.mmap(self._file.fileno(), HEAD.size)

    def fill(self, contents: bytes, step: int, count: int) -> None:
        """Write the contents, unless it is closed; others see them when they are whole."""
        with self._lock:
            if self.is_open:
                self._file.write(contents)
                self._file.flush()
                HEAD.pack_into(self._map, 0, step, count)
                self.is_filled = True

    @property
    def is_open(self) -> bool:
        return not self._file.closed

    def move(self, step: int) -> None:
        with self._lock:
            if self.is_open and self.is_filled:  # readers wait for one that is new
                struct.pack_into("<q", self._map, 0, step)

    def close(self) -> None:
        with self._lock:
            self._path.unlink(missing_ok=True)
            self._map.close()
            self._file.close()


def live_files(folder: str, kind: str, *, remove_dead: bool = False) -> list[Path]:
    """The files of loaders that are there; others are removed only under the cache's lock."""
    found = []
    for path in Path(f"{folder}/{kind}").glob("*"):
        with suppress(OSError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(path)
            else:
                if remove_dead:
                    path.unlink()
    return found


class Homes:
    """The homes of blocks; `facts` of the nodes are empty until all is there."""

    def __init__(self, path: Path) -> None:
        self._head = np.memmap(path, np.int64, "r", shape=(2,))
        count = int(self._head[1])
        self.facts: dict[str, Any] = {}
        if count:
            self._rows = np.memmap(path, HOME, "r", offset=HEAD.size, shape=(count,))
            self.facts = json.loads(path.read_bytes()[HEAD.size + self._rows.nbytes :])

    def rows(self, keys: NDArray[np.uint64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The rows of some blocks, and whether each is one: others are of other datasets."""
        at = np.minimum(np.searchsorted(self._rows["key"], keys), len(self._rows) - 1)
        return self._rows[at], self._rows["key"][at] == keys

    def next_uses(self, keys: NDArray[np.uint64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The steps that read blocks next, on whatever node, from those of this machine."""
        rows, is_known = self.rows(keys)
        use = rows["use"]
        due = np.where(use < self._head[0], NEVER, use)
        own = np.minimum(np.where(steps < 0, NEVER, steps), due)
        copies = np.where((steps >= 0) & (steps < _FAR), steps + _FAR, steps)
        return np.where(is_known, np.where(use < 0, copies, own), steps)
