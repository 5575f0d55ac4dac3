"""One file of tokens: where its tokens start, how many there are, and where documents end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.base.arguments import near_name
from shardwise.base.errors import DataError
from shardwise.storage import FileStat


@dataclass(frozen=True)
class TokenFile:
    """A run of tokens in a file.

    `index` has the counts of the index that says where the documents end: of sequences and bounds
    of Megatron's, of items of LitData's; it is empty if the format has none.
    """

    url: str
    stat: FileStat
    dtype: np.dtype[Any]
    offset: int
    num_tokens: int
    index: tuple[int, ...] = ()


def checked_dtype(dtype: Any) -> np.dtype[Any] | None:
    """The user's dtype of raw tokens, which are integers, little-endian."""
    if dtype is None:
        return None
    try:
        made: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        made = np.dtype(object)
    if made.kind not in "iu":
        raise TypeError(
            f"dtype={dtype!r:.60}: tokens are integers, such as 'uint16' or 'uint32'"
            + near_name(dtype, ("uint8", "uint16", "uint32", "int32", "int64"))
        )
    if made.byteorder == ">":
        raise TypeError(
            f"dtype={dtype!r:.60}: tokens are read little-endian; swap the bytes once, "
            f"np.fromfile(path, {made.str!r}).astype({made.str.replace('>', '<')!r}).tofile(...)"
        )
    return made


def require_dtype(url: str, given: np.dtype[Any] | None, own: np.dtype[Any], source: str) -> None:
    """Raise DataError if the user's dtype, if given, differs from the file's, found in `source`."""
    if given is not None and given != own:
        raise DataError(f"dtype={given.name} was given, and {source} says {own.name}", url=url)


def tokens_between(url: str, offset: int, end: int, dtype: np.dtype[Any]) -> int:
    """The number of tokens between two bytes of a file, the last of them whole."""
    count, rest = divmod(end - offset, dtype.itemsize)
    if rest:
        raise DataError(
            f"{end - offset} bytes of tokens are no multiple of {dtype.itemsize}, the size of "
            f"{dtype.name}: the file is cut, or its tokens have another dtype",
            url=url,
            offset=end - rest,
        )
    return count
