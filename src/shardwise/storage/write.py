"""Whole files, local or remote: they appear with all of their bytes, or not at all (I8).

A local file is written under a hidden temporary name beside the target; only a whole file, flushed
to disk, gets the target's name. A killed process leaves at most a hidden file that no reader opens;
`sweep` removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from shardwise.base.errors import StorageError
from shardwise.storage.open import is_local, local_path, remote_storage
from shardwise.storage.options import StorageOptions

# The name of a file that is being written: the target's, the machine, the process, a random part.
_TEMPORARY = re.compile(r"\..{1,40}\.([0-9a-f]{8})-([0-9]{1,9})-[0-9a-f]{8}\.tmp", re.DOTALL)


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str],
    mode: str = "wb",
    *,
    buffering: int = -1,
    overwrite: bool = True,
    fsync: bool = True,
) -> Iterator[IO[Any]]:
    """Open a file for writing that takes its name when the block ends without an exception.

    On any exception, also KeyboardInterrupt, the file is removed and the target stays as it was.
    Two writers of one target do not mix: the last one to end wins.

    The mode is "wb", or "w" for UTF-8 text. Without `overwrite` a target that exists is refused, at
    the start and at the end; without `fsync` the caller has flushed the whole file to disk before.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f"mode={mode!r}: 'wb' or 'w'")
    target = Path(path)
    _refuse_existing(target, overwrite)
    # At most 40 characters of the name: with the suffix, the whole could be too long.
    owner = os.getpid()
    temporary = target.with_name(
        f".{target.name[:40]}.{_host()}-{owner}-{secrets.token_hex(4)}.tmp"
    )
    encoding = None if "b" in mode else "utf-8"
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "There is no such directory", str(target.parent))
    try:
        with open(temporary, mode.replace("w", "x"), buffering, encoding=encoding) as file:
            # Locked until the file has its name: `sweep` leaves locked files alone. Where the file
            # system has no locks, nothing is swept.
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            if fsync:
                os.fsync(file.fileno())
            _refuse_existing(target, overwrite)
            temporary.replace(target)
    except BaseException:
        # A forked child that ends with this block open must not remove its parent's file.
        if os.getpid() == owner:
            temporary.unlink(missing_ok=True)
        raise


def sweep(directory: str | os.PathLike[str]) -> None:
    """Remove the hidden files that killed processes of this machine left in a directory.

    Only unlocked files of `atomic_write` whose process is gone. An empty file stays: its writer may
    be about to lock it.
    """
    try:
        paths = list(Path(directory).iterdir())
    except OSError:
        return
    for path in paths:
        name = _TEMPORARY.fullmatch(path.name)
        if name is None or name[1] != _host() or is_running(int(name[2])):
            continue
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_size:
                    path.unlink()
            finally:
                os.close(fd)


def _host() -> str:
    """An id of this machine: process numbers of other machines mean nothing here."""
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"


def is_running(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It is another user's.
        return True
    return True


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not overwrite and target.exists():
        raise FileExistsError(f"{str(target)!r} exists already: remove it, or pass overwrite=True")


def write_whole(url: str, data: bytes, *, options: StorageOptions | None = None) -> None:
    """Write a file under a path or URL; directories of this machine that are missing are made."""
    if not is_local(url):
        upload(url, data, options=options)
        return
    path = Path(local_path(url))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise StorageError(f"{str(path)!r} can't be written: {error.strerror or error}") from error


def upload(
    url: str, source: bytes | Path, *, options: StorageOptions | None = None, etag: str = ""
) -> None:
    """Store bytes, or a local file, under a remote URL; the object before is replaced at the end.

    With an `etag` only that version is replaced, in stores that can compare.
    """
    remote_storage(url).upload(url, source, options or StorageOptions(), etag=etag)


def remove(url: str, *, options: StorageOptions | None = None) -> None:
    """Remove the object under a remote URL; a missing one is not an error."""
    remote_storage(url).remove(url, options or StorageOptions())
