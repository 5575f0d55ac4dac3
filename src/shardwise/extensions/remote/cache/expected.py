"""Which blocks of a cache its loaders expect to read, and when: files that all processes look at.

Each loader of a rank has one, locked while it is used: an unlocked one is removed by the next
process that evicts.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.remote.cache.block_file import text_digest
from shardwise.plan.uses import BlockUses

# The step that its loader has come to, and the number of uses; then their blocks and steps.
_HEAD = struct.Struct("<qq")
_ODD = 0x9E3779B97F4A7C15


def _keys(digests: NDArray[np.uint64], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each block; two of a cache have the same once in 2**64 / blocks."""
    return digests + numbers.astype(np.uint64) * np.uint64(_ODD)


class ExpectedUses:
    """The uses that one loader expects, as a file in the folder of a cache.

    Args:
        folder: of the cache.
        lock: that of the cache, under which others remove unlocked files.
        urls: of files.
        files: int64 `[uses]`, the number of the file of each use.
        numbers: int64 `[uses]`, the block in that file.
        steps: int64 `[uses]`, when.

    Raises:
        OSError: the disk refuses.
    """

    def __init__(
        self,
        folder: str,
        lock: Callable[[], AbstractContextManager[object]],
        *,
        urls: Sequence[str],
        files: NDArray[np.int64],
        numbers: NDArray[np.int64],
        steps: NDArray[np.int64],
    ) -> None:
        used, files = np.unique(files, return_inverse=True)
        digests = [int(text_digest(urls[file]), 16) for file in used.tolist()]
        keys = _keys(np.array(digests, np.uint64)[files], numbers)
        order = np.lexsort((steps, keys))
        os.makedirs(f"{folder}/uses", exist_ok=True)  # noqa: PTH103
        self._path = Path(f"{folder}/uses/{uuid.uuid4().hex}")
        with lock():
            self._file = self._path.open("x+b")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        # Others see no uses until all are there.
        self._file.write(_HEAD.pack(0, 0) + keys[order].tobytes() + steps[order].tobytes())
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), _HEAD.size)
        _HEAD.pack_into(self._map, 0, int(steps.min(initial=0)), len(keys))

    def move(self, step: int) -> None:
        """Note that all steps before this one were read."""
        struct.pack_into("<q", self._map, 0, step)

    def close(self) -> None:
        """Expect nothing any more."""
        self._path.unlink(missing_ok=True)
        self._map.close()
        self._file.close()


class NextUses:
    """When the blocks of a cache are read next, as its loaders expect it now."""

    def __init__(self, folder: str) -> None:
        self._uses: list[tuple[NDArray[np.int64], BlockUses]] = []
        for path in Path(f"{folder}/uses").glob("*"):
            try:
                with path.open("rb") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except BlockingIOError:
                        self._add(path)
                    else:
                        path.unlink()  # its loader is gone
            except OSError:
                continue

    def _add(self, path: Path) -> None:
        if path.stat().st_size <= _HEAD.size:
            return
        head = np.memmap(path, np.int64, "r", shape=(2,))
        count = int(head[1])
        if count:
            data = np.memmap(path, np.int64, "r", offset=_HEAD.size, shape=(2, count))
            self._uses.append((head, BlockUses(data[0].view(np.uint64), data[1])))

    def of(self, names: Sequence[str], *, skip: int = 0) -> NDArray[np.int64]:
        """For blocks by name the step that reads each next; -1 if no loader knows of its file.

        `skip` leaves out so many steps.
        """
        digests = np.array([int(name[:16], 16) for name in names], np.uint64)
        numbers = np.array([int(name[33:41], 16) for name in names], np.int64)
        keys, found = _keys(digests, numbers), np.full(len(names), -1, np.int64)
        for head, uses in self._uses:
            steps = uses.next_steps(keys, int(head[0]), skip=skip)
            at = np.minimum(np.searchsorted(uses.blocks, keys), len(uses.blocks) - 1)
            steps[uses.blocks[at] != keys] = -1
            is_first = (found < 0) | ((steps >= 0) & (steps < found))
            found[is_first] = np.maximum(steps, -1)[is_first]
        return found
