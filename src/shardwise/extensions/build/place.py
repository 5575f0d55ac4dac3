"""The output of a build: the shards, and beside them its state, under one directory or URL.

`build.json` identifies the build. While a build is under way, `.build/` holds a note for each
shard that is done, the lock and the staging directories of its processes; in a store there are
notes alone, `.build-*.json`. Nothing of it is left at the end. A shard is done when its note is
there: it is written after the shard has its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn, TypeVar

from shardwise.base.errors import MissingShardError, StateError, StorageError
from shardwise.base.shown import shown
from shardwise.storage import StorageOptions, is_local, open_file, read_whole
from shardwise.storage.listing import list_remote
from shardwise.storage.write import remove, write_whole

T = TypeVar("T")

STATE_NAME = "build.json"
_WORK = ".build"
_THREADS = 16
# Workers of a killed build end within a second of it.
_ORPHANS_S, _POLL_S = 60.0, 0.05


@dataclass(frozen=True)
class Place:
    """The output directory of a build."""

    root: str
    options: StorageOptions

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine."""
        return is_local(self.root)

    def url(self, name: str) -> str:
        """The path or URL of a file."""
        return f"{self.root}/{name}"

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where it is not there."""
        try:
            return read_whole(self.url(name), options=self.options)
        except MissingShardError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all."""
        write_whole(self.url(name), data, options=self.options)

    def remove(self, name: str) -> None:
        if self.is_local:
            Path(self.url(name)).unlink(missing_ok=True)
        else:
            remove(self.url(name), options=self.options)

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        if self.is_local:
            return Path(self.url(name)).exists()
        try:
            open_file(self.url(name), options=self.options).stat()
        except MissingShardError:
            return False
        return True

    @property
    def has_no_output(self) -> bool:
        """Whether a build ended before its first shard. Never in a store, which nothing locks."""
        if not self.is_local or self.notes():
            return False
        return self.sizes().keys() <= {STATE_NAME, _WORK}

    def sizes(self) -> dict[str, int]:
        """All names in a local directory, with the bytes of files; 0 for others."""
        found = {}
        with os.scandir(self.root) as entries:
            for each in entries:
                # A file of another program may go meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    found[each.name] = each.stat().st_size if each.is_file() else 0
        return found

    # Notes.

    def note(self, name: str) -> str:
        """The name of a note: in a store no directory, which some gateways would keep."""
        return f"{_WORK}/{name}.json" if self.is_local else f"{_WORK}-{name}.json"

    def notes(self) -> set[str]:
        """The names of all notes."""
        if self.is_local:
            with contextlib.suppress(FileNotFoundError):
                names = os.listdir(self.url(_WORK))  # noqa: PTH208 - 100,000 names
                return {name[:-5] for name in names if name.endswith(".json")}
            return set()
        try:
            urls = list_remote(
                self.url(self.note("*")), suffixes=(), ignored="/", options=self.options
            )
        except MissingShardError:
            return set()
        return {url.rpartition("/")[2].removeprefix(f"{_WORK}-")[:-5] for url in urls}

    def clear_notes(self) -> None:
        """Remove the notes of an earlier run."""
        self._each(lambda name: self.remove(self.note(name)), sorted(self.notes()))

    def read_notes(self, names: Sequence[str]) -> list[bytes | None]:
        """The notes with some names, each whole; None where one is not there."""
        return self._each(lambda name: self.read(self.note(name)), names)

    def _each(self, call: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """Call a function of each name: of a store by several threads, which wait for requests."""
        if self.is_local:
            return [call(name) for name in names]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="shardwise-build") as pool:
            return list(pool.map(call, names))

    def clear(self) -> None:
        """Remove all that only a build under way needs."""
        if self.is_local:
            shutil.rmtree(self.url(_WORK), ignore_errors=True)
        else:
            self.clear_notes()

    # Staging: what a killed process leaves lies in a directory that is removed as a whole.

    @contextmanager
    def staging(self) -> Iterator[str]:
        """A directory for one shard on the output's file system; removed at the end."""
        directory = tempfile.mkdtemp(prefix="staging-", dir=self.url(_WORK))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[str]:
        """Keep other builders out once killed ones' workers have ended; yields its token."""
        token = secrets.token_hex(8)
        if not self.is_local:
            yield token
            return
        try:
            Path(self.root).mkdir(parents=True, exist_ok=True)
            Path(self.url(_WORK)).mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"can't write to the output directory {self.root!r}: {error.strerror or error}"
            ) from error
        with self._lock_file("builder") as builder:
            if not _lock(builder):
                raise StateError(
                    f"another build writes to {shown(self.root)!r} now: wait until it has ended, "
                    "or give another directory"
                )
            # No worker of another builder starts from here on; wait for those that have started.
            builder.truncate(0)
            builder.write(token.encode())
            builder.flush()
            self._await_orphans()
            for left in Path(self.url(_WORK)).glob("staging-*"):
                shutil.rmtree(left, ignore_errors=True)
            for left in Path(self.url(_WORK)).glob(".*.tmp"):
                left.unlink(missing_ok=True)
            yield token

    def _await_orphans(self) -> None:
        deadline = time.monotonic() + _ORPHANS_S
        with self._lock_file("workers") as workers:
            while not _lock(workers):
                if time.monotonic() > deadline:
                    raise StateError(
                        f"worker processes of an earlier build of {shown(self.root)!r} are still "
                        f"running after {_ORPHANS_S:.0f} s: end them, then build again"
                    )
                time.sleep(_POLL_S)

    def _lock_file(self, name: str) -> IO[bytes]:
        """A file to lock, which is the one that the others see."""
        path = Path(self.url(_WORK)) / f"{name}.lock"
        while True:
            path.parent.mkdir(exist_ok=True)
            # A build that ends just now removes its directory.
            with contextlib.suppress(FileNotFoundError):
                return path.open("ab")

    def join(self, token: str) -> AbstractContextManager[object]:
        """Show later builders that this one's worker runs, until the returned object is closed."""
        if not self.is_local:
            return nullcontext()
        try:
            lock = (Path(self.url(_WORK)) / "workers.lock").open("ab")
        except FileNotFoundError:
            self._refuse_worker()
        with contextlib.suppress(OSError):
            fcntl.flock(lock.fileno(), fcntl.LOCK_SH)
        # Only now: a later builder writes its token, then waits for this lock.
        if self.read(f"{_WORK}/builder.lock") != token.encode():
            lock.close()
            self._refuse_worker()
        return lock

    def _refuse_worker(self) -> NoReturn:
        raise StorageError(
            f"the machine {os.uname().nodename!r} does not see the output of this build in "
            f"{str(Path(self.root).absolute())!r}: on several machines, give a directory that all "
            "of them share, or a store, such as 's3://bucket/out/{shard:06d}.tar'"
        )


def _lock(file: IO[bytes]) -> bool:
    """Lock a file; whether that succeeded. Where the file system has no locks, nothing is locked.

    A file whose name is gone belongs to a build that has just ended: it counts as taken.
    """
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    try:
        seen = os.stat(file.name)  # noqa: PTH116 - beside fstat
    except FileNotFoundError:
        return False
    here = os.fstat(file.fileno())
    return (seen.st_dev, seen.st_ino) == (here.st_dev, here.st_ino)
