"""The files of a cache directory: their owners, their URLs, and whether they are in use.

Beside a cached file `name` lies its record `.name.url` with a digest of the URL; a file without one
is another program's, neither read nor deleted. While a stream of it is open, a file is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

from shardwise.base.shown import shown
from shardwise.storage import atomic_write
from shardwise.storage.write import sweep


def digest(url: str) -> str:
    """The digest in the record of a URL's file: the URL itself may contain a secret."""
    return hashlib.sha256(url.encode()).hexdigest()


def candidates(directory: Path, name: str, url: str) -> list[Path]:
    """Paths where the file of a URL may lie: its plain name, or a unique one if that is taken."""
    own = f"{digest(url)[:16]}-{name.rpartition('/')[2][-128:]}"
    parts = name.split("/")
    if name.startswith("/") or ".." in parts[:-1]:
        raise ValueError(
            f"the cache name {name!r} of {shown(url)!r} leads out of the cache directory"
        )
    if parts[-1] in ("", ".", ".."):
        return [directory / own]
    return [directory / name, (directory / name).with_name(own)]


def _record(path: Path) -> Path:
    return path.with_name(f".{path.name}.url")


def is_cached(path: Path) -> bool:
    """Whether a file has a record: then it was made here."""
    return _record(path).exists()


def holds(path: Path, url: str) -> bool:
    """Whether the whole file of this URL lies under this name."""
    with contextlib.suppress(OSError):
        return _record(path).read_text() == digest(url) and path.is_file()
    return False


def claim(path: Path, url: str) -> bool:
    """Take a name for a URL; False if another URL, or a file that is not ours, has it."""
    record = _record(path)
    if not record.exists() and path.exists():
        return False
    try:
        with open(record, "x") as file:
            file.write(digest(url))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            return record.read_text() == digest(url)
        return False
    return True


@contextlib.contextmanager
def new_file(places: list[Path], url: str) -> Iterator[IO[bytes]]:
    """A file to write, which gets the first free name of a URL when it is whole."""
    name, own = places[0], places[-1]
    own.parent.mkdir(parents=True, exist_ok=True)
    sweep(own.parent)
    with atomic_write(own) as file:
        yield file
        _record(own).write_text(digest(url))
    if name != own and claim(name, url):
        # Another process that fetched the same may have moved it already.
        with contextlib.suppress(FileNotFoundError):
            own.replace(name)
        _record(own).unlink(missing_ok=True)


def open_locked(path: Path) -> BinaryIO | None:
    """Open a cached file and keep it from being deleted until the stream is closed."""
    with contextlib.suppress(FileNotFoundError):
        stream = open(path, "rb")  # noqa: SIM115 - handed to the caller
        # It may be deleted at this moment, or have been between the two.
        if _lock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB) and os.fstat(stream.fileno()).st_nlink:
            return stream
        stream.close()
    return None


def remove_unused(path: Path) -> bool:
    """Delete a file and its record, unless a stream of it is open; return whether it is gone."""
    # Another process may be faster.
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        if not _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        path.unlink()
        _record(path).unlink(missing_ok=True)
    return True


def _lock(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how)
    except OSError as error:
        # On file systems without locks, a deleted file can still be read.
        return not isinstance(error, BlockingIOError)
    return True


@dataclass(eq=False, repr=False)
class LRUCleanup:
    """Deletes the files used longest ago beyond `cache_size` bytes, but none in use."""

    cache_dir: str | os.PathLike[str] | None = None
    cache_size: float = int(1e12)
    keyfn: Callable[[str], Any] = os.path.getctime
    verbose: bool = False
    interval: float | None = 30
    only: Callable[[Path], bool] | None = field(default=None, kw_only=True)
    last_run: float = field(default=0.0, init=False)

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
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
            except OSError as error:
                warnings.warn(f"can't delete {str(path)!r} from the cache: {error}", stacklevel=2)
                continue
            if deleted:
                total -= num_bytes
                if self.verbose:
                    sys.stderr.write(f"# deleting {path}\n")
        self.last_run = time.time()

    def _files(self) -> Iterator[tuple[Any, int, Path]]:
        assert self.cache_dir is not None
        for directory, _, names in os.walk(self.cache_dir):
            for name in names:
                path = Path(directory, name)
                is_record = name.startswith(".") and name.endswith(".url")
                if is_record or (self.only is not None and not self.only(path)):
                    continue
                try:
                    yield self.keyfn(str(path)), path.stat().st_size, path
                except FileNotFoundError:
                    continue
