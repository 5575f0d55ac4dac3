"""The MD5 of a file, as wids' indexes hold it: against accidents, not against attacks."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO


def compute_file_md5sum(fname: str | Path | BinaryIO, chunksize: int = 1 << 20) -> str:
    """The MD5 of a file or open stream as 32 hex digits; a stream is read from its beginning."""
    if not isinstance(fname, str | Path):
        fname.seek(0)
        return _digest(fname, chunksize)
    with open(fname, "rb") as file:
        return _digest(file, chunksize)


def _digest(file: BinaryIO, chunksize: int) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(chunksize):
        digest.update(chunk)
    return digest.hexdigest()
