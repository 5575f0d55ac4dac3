"""Whether a file is a whole tar.

Keeps I6: a shard that was cut short on its way, also between two members, is not taken for a
shorter one.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwise.errors import DataError
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import LocalFile

_CHUNK_BYTES = 1 << 20
_OPENERS: dict[bytes, tuple[str, Callable[..., Any]]] = {
    b"\x1f\x8b": ("gzip compressed data", gzip.open),
    b"BZh": ("bzip2 compressed data", bz2.open),
    b"\xfd7zXZ\0": ("XZ compressed data", lzma.open),
}


def magic_filetype(fname: str) -> str:
    """What a file's first bytes say it is: a tar, compressed data, or data."""
    with open(fname, "rb") as file:
        head = file.read(512)
    for magic, (what, _) in _OPENERS.items():
        if head.startswith(magic):
            return f"{fname}: {what}"
    return f"{fname}: {'POSIX tar archive' if head[257:262] == b'ustar' else 'data'}"


get_filetype = magic_filetype


def check_tar_format(fname: str) -> bool:
    """Whether a file is a whole tar: every header is sound, every member and the end are there.

    Of a compressed tar, all is unpacked and its checksums are held.
    """
    return why_no_tar(fname) is None


def why_no_tar(fname: str) -> str | None:
    """What is wrong with a tar; None for a whole one."""
    with open(fname, "rb") as file:
        head = file.read(8)
    for magic, (_, opener) in _OPENERS.items():
        if head.startswith(magic):
            return _why_no_stream(fname, opener)
    scan = Scan(LocalFile(fname), Path(fname).stat().st_size, url=fname)
    try:
        for _ in scan.runs():
            pass
    except DataError as error:
        return str(error)
    return None if scan.has_end else "it ends without the blocks of zeros of a tar: cut short"


def _why_no_stream(fname: str, opener: Callable[..., Any]) -> str | None:
    try:
        with opener(fname, "rb") as file:
            while file.read(_CHUNK_BYTES):
                pass
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        return f"damaged or cut short: {error}"
    return None
