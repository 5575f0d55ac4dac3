"""A directory that other programs fill with shards while it is read.

Each shard is renamed while it is in use, so that several readers share the directory; the process
id in the name tells which were left by readers that died.
"""

# Paths are text here: names are cut and glued.
# ruff: noqa: PTH104, PTH108, PTH112, PTH118, PTH207

from __future__ import annotations

import glob
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardwise.compat.webdataset.pytorch import IterableDataset
from shardwise.compat.webdataset.utils import glob_with_braces


def check_pid_is_running(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def without_last_extension(fname: str) -> str:
    """A name without its last dot and what follows."""
    return re.sub(r"\.[^.]*$", "", fname)


def get_pid_from_filename(fname: str) -> int | None:
    """The process that uses a shard, by its name."""
    found = re.search(r"\._(\d+)_$", fname)
    return int(found[1]) if found else None


@dataclass(eq=False, repr=False)
class DirectoryShardList(IterableDataset[Any]):
    """The shards of a directory, again and again, with those that come while it is read."""

    path: str
    pattern: str = "*.{tar,tgz,tar.tgz}"
    poll: float | None = 1
    timeout: float = 1e12
    mode: str | None = "resample"
    select: str = "random"
    fate: Any = None

    def __post_init__(self) -> None:
        if not self.path.endswith("/") or not os.path.isdir(self.path):
            raise ValueError(f"path={self.path!r}: must be a directory, with a slash behind it")
        if self.select not in ("random", "oldest"):
            raise ValueError(f"select={self.select!r}: must be 'random' or 'oldest'")
        if self.mode not in ("unlink", "keep", "resample", None):
            raise ValueError(f"mode={self.mode!r}: must be 'unlink', 'keep' or 'resample'")

    def recycle(self, activename: str) -> None:
        """Put away a shard that was read."""
        if self.mode == "unlink":
            os.unlink(activename)
        elif self.mode == "keep":
            os.rename(activename, without_last_extension(activename) + "._done_")
        else:
            os.rename(activename, without_last_extension(activename))

    def cleanup_files_without_processes(self) -> None:
        """Put away shards of readers that have died."""
        for name in glob.glob(os.path.join(self.path, "*._*_")):
            pid = get_pid_from_filename(name)
            if pid is not None and not check_pid_is_running(pid):
                self.recycle(name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start = time.monotonic()
        while time.monotonic() - start < self.timeout:
            found = sorted(glob_with_braces(self.path + self.pattern))
            active = self._take(found) if found else None
            if active is None:
                if self.poll is None and not found:
                    return
                time.sleep(self.poll or 0)
                continue
            yield {"url": active}
            self.recycle(active)
            self.cleanup_files_without_processes()

    def _take(self, found: list[str]) -> str | None:
        """Rename one of the shards to show that it is in use; None if another reader has it."""
        try:
            if self.select == "oldest":
                name = min(found, key=lambda path: os.stat(path).st_mtime_ns)  # noqa: PTH116
            else:
                # Which one a reader gets depends on the other readers anyway.
                name = random.choice(found)  # noqa: S311
            active = f"{name}._{os.getpid()}_"
            os.rename(name, active)
        except FileNotFoundError:
            return None
        return active
