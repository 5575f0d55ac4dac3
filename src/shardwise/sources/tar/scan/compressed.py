"""Compressed shards and tables: refused, with the command that unpacks or the name that opens them.

Single samples can't be read out of the middle of a compressed stream.
"""

from __future__ import annotations

from shardwise.base.errors import DataError
from shardwise.base.shown import in_command
from shardwise.storage import is_local
from shardwise.storage.known_formats import known_format

# File endings, by the program that unpacks them.
_SUFFIXES = {
    "gzip": (".gz", ".tgz"),
    "bzip2": (".bz2", ".tbz2"),
    "xz": (".xz", ".txz"),
    "zstd": (".zst", ".tzst"),
}


def refuse_compressed(url: str) -> None:
    """Raise `DataError` if the name is that of a compressed tar, with what to do about it."""
    for what, suffixes in _SUFFIXES.items():
        if url.lower().endswith(suffixes):
            raise _refusal(what, url)


def refuse_compressed_start(start: bytes, url: str) -> None:
    """Raise `DataError` if a file's first bytes are of a compressed file or a table."""
    # A member may be called "PAR1.txt".
    is_tar = start[257:262] == b"ustar"
    found = "" if is_tar else known_format(start, may_be_text=True) or ""
    what = found.partition(":")[0]
    if what in _SUFFIXES:
        raise _refusal(what, url)
    if what in ("a Parquet file", "an Arrow file"):
        raise DataError(f"no tar, but {found}", url=url)


def _refusal(what: str, url: str) -> DataError:
    unpack = f"with `{what} -d {in_command(url)}`"
    if not is_local(url):
        unpack = "there, or turn it off that the server compresses what it sends (Content-Encoding)"
    return DataError(
        f"the shard is compressed ({what}): single samples can't be read from it; unpack it "
        f"{unpack} (images and video are compressed already)",
        url=url,
    )
