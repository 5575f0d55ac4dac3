r"""Megatron's datasets: tokens in a `.bin`, and sizes and documents in the `.idx` beside it.

Layout of the `.idx`, little-endian: `MMIDIDX\0\0`; version, uint64, 1; the code of the dtype,
uint8; the number of sequences and of bounds of documents, uint64 each; the sizes in tokens,
int32; their offsets in the `.bin` in bytes, int64; the bounds of the documents as numbers of
sequences, int64, from 0 on; and, in multimodal data, a mode for each sequence, int8.

Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, MissingShardError, StorageError
from shardwise.extensions.formats.tokens.token_file import TokenFile, require_dtype
from shardwise.storage import FileStat, StorageOptions, open_file

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = (6, 7)


def index_url(url: str) -> str:
    """The `.idx` that belongs to a `.bin`."""
    return f"{url.removesuffix('.bin')}.idx"


def open_megatron(
    url: str, stat: FileStat, dtype: np.dtype[Any] | None, options: StorageOptions
) -> TokenFile | None:
    """The tokens of a `.bin`, by 46 bytes of its `.idx`; None without an `.idx`."""
    name = index_url(url)
    try:
        file = open_file(name, options=options)
        size = file.stat().num_bytes
    except MissingShardError:
        return None
    except StorageError:
        # Without the right to list a bucket, a missing object is "forbidden". With the dtype, the
        # tokens are the same without the index.
        if dtype is None:
            raise
        return None
    header = file.read(0, min(size, _HEADER.size))
    if header[: len(_MAGIC)] != _MAGIC[: len(header)] or not header:
        raise DataError("no index of Megatron: it does not begin with MMIDIDX", url=name, offset=0)
    if len(header) < _HEADER.size:
        raise DataError(f"an index of {size} bytes is cut: a header has 34", url=name, offset=size)
    _, version, code, num_sequences, num_bounds = _HEADER.unpack(header)
    if version != 1:
        raise DataError(f"version {version} of an index of Megatron, not 1", url=name, offset=9)
    if code not in _DTYPES:
        what = "floats, which are no tokens" if code in _FLOATS else "unknown"
        raise DataError(f"the dtype's code is {code}: {what}", url=name, offset=17)
    own = np.dtype(_DTYPES[code])
    require_dtype(name, dtype, own, "the index")
    places = _HEADER.size + 4 * num_sequences
    end = places + 8 * num_sequences + 8 * num_bounds
    if size not in (end, end + num_sequences):
        raise DataError(
            f"an index of {num_sequences} sequences and {num_bounds} bounds of documents has {end} "
            f"bytes, and this one {size}: it is cut or damaged",
            url=name,
            offset=min(size, end),
        )
    num_bytes = 0
    if num_sequences:
        length = struct.unpack("<i", file.read(places - 4, 4))[0]
        num_bytes = struct.unpack("<q", file.read(places + 8 * (num_sequences - 1), 8))[0]
        num_bytes += length * own.itemsize
    if num_bytes != stat.num_bytes:
        raise DataError(
            f"the index is of {num_bytes} bytes of tokens, and there are {stat.num_bytes}: the "
            "file is cut, or the index belongs to another one",
            url=url,
            offset=min(num_bytes, stat.num_bytes) if num_bytes >= 0 else 0,
        )
    file.close()
    index = num_sequences, num_bounds
    return TokenFile(url, stat, own, 0, stat.num_bytes // own.itemsize, index)


def read_documents(tokens: TokenFile, options: StorageOptions) -> NDArray[np.int64]:
    """The end of each document, in tokens; reads the whole index, and checks it."""
    url, itemsize, (num_sequences, num_bounds) = (
        index_url(tokens.url), tokens.dtype.itemsize, tokens.index,
    )  # fmt: skip
    file = open_file(url, options=options)
    at = _HEADER.size
    data = file.read(at, 12 * num_sequences + 8 * num_bounds)
    file.close()
    sizes = np.frombuffer(data, "<i4", num_sequences).astype(np.int64)
    places = np.frombuffer(data, "<i8", num_sequences, 4 * num_sequences)
    bounds = np.frombuffer(data, "<i8", num_bounds, 12 * num_sequences)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    wrong = np.flatnonzero((sizes < 0) | (places != ends[:-1] * itemsize))
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"sequence {first} has {sizes[first]} tokens from byte {places[first]} on, and the "
            f"ones before end at byte {ends[first] * itemsize}: the index is damaged",
            url=url,
            offset=at + 4 * num_sequences + 8 * first,
        )
    odd = np.flatnonzero(np.diff(bounds) < 0)
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != num_sequences or len(odd):
        first = int(odd[0]) + 1 if len(odd) else 0
        raise DataError(
            f"the bounds of the documents do not ascend from 0 to {num_sequences}: the index is "
            "damaged",
            url=url,
            offset=at + 12 * num_sequences + 8 * first,
        )
    documents: NDArray[np.int64] = ends[bounds[1:]]
    return documents
