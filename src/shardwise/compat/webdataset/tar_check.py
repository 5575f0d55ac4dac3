"""Whether a file is a whole tar.

Keeps I6: a shard that was cut short on its way, also between two members, is not taken for a
shorter one.
"""

from __future__ import annotations

from pathlib import Path

from shardwise.compat.webdataset.tar_stream import Unpacked
from shardwise.errors import DataError
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import LocalFile

_CHUNK_BYTES = 1 << 20
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "XZ"}


def _compression(fname: str) -> str | None:
    with open(fname, "rb") as file:
        head = file.read(8)
    return next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), None)


def magic_filetype(fname: str) -> str:
    """The kind of a file by its first bytes: a tar, compressed data, or data."""
    name = _compression(fname)
    if name is not None:
        return f"{fname}: {name} compressed data"
    with open(fname, "rb") as file:
        is_tar = file.read(512)[257:262] == b"ustar"
    return f"{fname}: {'POSIX tar archive' if is_tar else 'data'}"


get_filetype = magic_filetype


def check_tar_format(fname: str) -> bool:
    """Whether a file is a whole tar: every header is sound, every member and the end are there.

    Of a compressed tar, all is unpacked and its checksums are held.
    """
    return why_no_tar(fname) is None


def why_no_tar(fname: str) -> str | None:
    """What is wrong with a tar; None for a whole one."""
    if _compression(fname) is not None:
        return _why_not_unpacked(fname)
    scan = Scan(LocalFile(fname), Path(fname).stat().st_size, url=fname)
    try:
        for _ in scan.runs():
            pass
    except DataError as error:
        return str(error)
    return None if scan.has_end else "it ends without the blocks of zeros of a tar: cut short"


def _why_not_unpacked(fname: str) -> str | None:
    with open(fname, "rb") as file:
        unpacked = Unpacked(file)
        try:
            while unpacked.read(_CHUNK_BYTES):
                pass
        except OSError as error:
            # What bz2 says of damaged data.
            unpacked.problem = error
    return None if unpacked.problem is None else f"damaged or cut short: {unpacked.problem}"
