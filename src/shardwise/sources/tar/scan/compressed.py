"""Compressed shards and tables: refused, with the command that unpacks or the name that opens them.

Single samples can't be read out of the middle of a compressed stream.
"""

from __future__ import annotations

from shardwise.errors import DataError
from shardwise.shown import in_command
from shardwise.storage import is_local

# By the program that unpacks: its endings.
_SUFFIXES = {
    "gzip": (".gz", ".tgz"),
    "bzip2": (".bz2", ".tbz2"),
    "xz": (".xz", ".txz"),
    "zstd": (".zst", ".tzst"),
}
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_TABLES = (b"PAR1", b"ARROW1")


def refuse_compressed(url: str) -> None:
    """Raise `DataError` if the name is that of a compressed tar; the message says what to do."""
    for what, suffixes in _SUFFIXES.items():
        if url.lower().endswith(suffixes):
            raise _refusal(what, url)


def refuse_compressed_start(start: bytes, url: str) -> None:
    """Raise `DataError` if a file's first bytes are of a compressed file or a table."""
    for magic, what in _MAGIC.items():
        if start.startswith(magic):
            raise _refusal(what, url)
    if start.startswith(_TABLES):
        raise DataError("a table and no tar: shardwise.parquet opens it", url=url)


def _refusal(what: str, url: str) -> DataError:
    unpack = f"with `{what} -d {in_command(url)}`"
    if not is_local(url):
        unpack = "there, or turn it off that the server compresses what it sends (Content-Encoding)"
    return DataError(
        f"the shard is compressed ({what}): single samples can't be read from it; unpack it "
        f"{unpack} (images and video are compressed already)",
        url=url,
    )
