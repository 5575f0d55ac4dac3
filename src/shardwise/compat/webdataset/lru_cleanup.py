"""Deleting files of a directory while it holds too much.

Keeps a part of I8: what a `FileCache` reads from, in any process, stays.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.compat.webdataset.cached_files import is_record, remove_unused


@dataclass(eq=False, repr=False)
class LRUCleanup:
    """Deletes the files used longest ago while a directory holds more than `cache_size` bytes.

    Files that a `FileCache` reads from, in any process, stay.
    """

    cache_dir: str | os.PathLike[str] | None = None
    cache_size: float = int(1e12)
    keyfn: Callable[[str], Any] = os.path.getctime
    verbose: bool = False
    interval: float | None = 30
    only: Callable[[Path], bool] | None = field(default=None, kw_only=True)
    last_run: float = field(default=0.0, init=False)

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        """Set the directory."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Delete files until the rest fits, or all that is left is in use."""
        if self.cache_dir is None or not Path(self.cache_dir).exists():
            return
        if self.interval is not None and time.time() - self.last_run < self.interval:
            return
        files = sorted(self._files(), key=lambda file: file[0])
        total = sum(num_bytes for _, num_bytes, _ in files)
        for _, num_bytes, path in files:
            if total <= self.cache_size:
                break
            try:
                deleted = remove_unused(path)
            except FileNotFoundError:
                deleted = True  # another process was faster
            except OSError as error:
                warnings.warn(f"can't delete {str(path)!r} from the cache: {error}", stacklevel=2)
                continue
            if deleted:
                total -= num_bytes
                if self.verbose:
                    sys.stderr.write(f"# deleting {path}\n")
        self.last_run = time.time()

    def _files(self) -> Iterator[tuple[Any, int, Path]]:
        """Order, size and path of each file that may go."""
        assert self.cache_dir is not None
        for directory, _, names in os.walk(self.cache_dir):
            for name in names:
                path = Path(directory, name)
                if is_record(path) or (self.only is not None and not self.only(path)):
                    continue
                try:
                    yield self.keyfn(str(path)), path.stat().st_size, path
                except FileNotFoundError:
                    continue
