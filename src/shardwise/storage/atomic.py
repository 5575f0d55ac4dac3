"""Files that appear whole or not at all.

Keeps I8: what is being written has a hidden temporary name beside the target; only a whole file,
flushed to disk, gets the target's name. A killed process leaves at most a hidden file that nobody
reads. Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["atomic_write"]


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str],
    mode: str = "wb",
    *,
    buffering: int = -1,
    overwrite: bool = True,
) -> Iterator[IO[Any]]:
    """Open a file for writing that takes its name when the block ends without an exception.

    On any exception, also KeyboardInterrupt, the file is removed and what was there before stays.
    Two that write the same target at once do not mix: the last one to end wins.

    Args:
        path: the target. Its directory must exist.
        mode: "wb", or "w" for UTF-8 text.
        buffering: as for `open`.
        overwrite: False refuses a target that exists, at the beginning and at the end.

    Raises:
        FileExistsError: the target exists and `overwrite` is False.
        OSError: the file can't be written.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f"mode={mode!r}: 'wb' or 'w'")
    target = Path(path)
    _refuse_existing(target, overwrite)
    # A part of the name only: the whole could be too long with what is added.
    owner = os.getpid()
    temporary = target.with_name(f".{target.name[:40]}.{owner}-{secrets.token_hex(4)}.tmp")
    encoding = None if "b" in mode else "utf-8"
    try:
        with open(temporary, mode.replace("w", "x"), buffering, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _refuse_existing(target, overwrite)
        temporary.replace(target)
    except BaseException:
        # A forked child that ends with this block open must not remove its parent's file.
        if os.getpid() == owner:
            temporary.unlink(missing_ok=True)
        raise


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not overwrite and target.exists():
        raise FileExistsError(f"{str(target)!r} exists already: remove it, or pass overwrite=True")
