"""Token chunks of LitData, as `optimize(..., item_loader=TokensLoader())` writes them.

A directory has an `index.json` with the chunks' names and the items' format, such as
"no_header_tensor:16", where the number stands for a dtype. A chunk starts with the number of its
items and their bounds in bytes, uint32 each; the items' tokens follow, one behind the other.

Source: LitData, src/litdata/streaming/writer.py and item_loader.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.extensions.formats.tokens.token_file import TokenFile, require_dtype, tokens_between
from shardwise.storage import StorageOptions, open_file
from shardwise.storage.url_patterns import refuse_repeats
from shardwise.storage.urls import beside

# Numbers of dtypes of integers: torch's, and those of numpy's.
_DTYPES = {
    "no_header_tensor": {11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4",
                         17: "<i8", 18: "<i8", 20: "<u2"},
    "no_header_numpy": {0: "i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "u1", 5: "<u2", 6: "<u4",
                        7: "<u8"},
}  # fmt: skip
_MAX_INDEX_BYTES = 1 << 30


def open_litdata(url: str, dtype: np.dtype[Any] | None, options: StorageOptions) -> list[TokenFile]:
    """The chunks that an `index.json` names, in its order."""
    file = open_file(url, options=options)
    size = file.stat().num_bytes
    if size > _MAX_INDEX_BYTES:
        raise DataError(f"an index.json of {size} bytes: it is none of LitData", url=url)
    try:
        index = json.loads(file.read(0, size))
        config, names = index["config"], [chunk["filename"] for chunk in index["chunks"]]
        formats, compression = config["data_format"], config.get("compression")
    except Exception as error:  # noqa: BLE001 - see `foreign_bytes`
        raise DataError(
            f"no index of LitData's chunks ({error!r}): sw.tokens reads what TokensLoader is for; "
            "samples with tokens in MDS or other formats are sw.mds, ..., then sw.pack",
            url=url,
        ) from None
    file.close()
    own = _dtype(formats, url)
    if compression or config.get("encryption"):
        raise DataError(
            f"compressed or encrypted chunks ({compression or config.get('encryption')}) have no "
            "tokens that can be read in place: write them without",
            url=url,
        )
    require_dtype(url, dtype, own, "the index")
    with as_data_error("the index can't be used", url=url):
        chunks = [beside(url, name) for name in names]
        refuse_repeats(chunks, in_index=True)
    return [_open_chunk(chunk, own, options) for chunk in chunks]


def _dtype(formats: Any, url: str) -> np.dtype[Any]:
    if isinstance(formats, Sequence) and len(formats) == 1 and isinstance(formats[0], str):
        kind, _, number = formats[0].partition(":")
        code = _DTYPES.get(kind, {}).get(int(number) if number.isdecimal() else -1)
        if code is not None:
            return np.dtype(code)
    raise DataError(
        f"items of the format {formats!r} are no rows of whole numbers: write them with "
        "item_loader=TokensLoader()",
        url=url,
    )


def _open_chunk(url: str, dtype: np.dtype[Any], options: StorageOptions) -> TokenFile:
    file = open_file(url, options=options)
    stat = file.stat()
    if stat.num_bytes < 8:
        raise DataError(f"a chunk of {stat.num_bytes} bytes is cut", url=url, offset=stat.num_bytes)
    count, offset = np.frombuffer(file.read(0, 8), "<u4").tolist()
    if offset != 4 * (count + 2):
        raise DataError(
            f"{count} items begin at byte {offset}, not {4 * (count + 2)}: no chunk of LitData, or "
            "a damaged one",
            url=url,
            offset=4,
        )
    end = offset
    if count and offset <= stat.num_bytes:
        end = int(np.frombuffer(file.read(4 + 4 * count, 4), "<u4")[0])
    if end != stat.num_bytes:
        raise DataError(
            f"the chunk's items end at byte {end}, and it has {stat.num_bytes} bytes: it is cut or "
            "damaged",
            url=url,
            offset=min(end, stat.num_bytes),
        )
    file.close()
    num_tokens = tokens_between(url, offset, end, dtype)
    return TokenFile(url, stat, dtype, offset, num_tokens, (count,))


def read_documents(tokens: TokenFile, options: StorageOptions) -> NDArray[np.int64]:
    """The end of each item of a chunk, in tokens."""
    url, dtype, (count,) = tokens.url, tokens.dtype, tokens.index
    file = open_file(url, options=options)
    bounds = np.frombuffer(file.read(4, 4 * (count + 1)), "<u4").astype(np.int64)
    file.close()
    lengths = np.diff(bounds)
    wrong = np.flatnonzero((lengths < 0) | (lengths % dtype.itemsize > 0))
    if len(wrong):
        raise DataError(
            f"item {wrong[0]} has {lengths[wrong[0]]} bytes of {dtype.name}: the chunk is damaged",
            url=url,
            offset=4 + 4 * int(wrong[0]),
        )
    documents: NDArray[np.int64] = (bounds[1:] - bounds[0]) // dtype.itemsize
    return documents
