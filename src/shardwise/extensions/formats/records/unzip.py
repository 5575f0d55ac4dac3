"""Whole shards that are compressed: their bytes, of the length that the index names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, imports_of
from shardwise.base.foreign_bytes import as_data_error

# The format's name, as an index has it -> Arrow's name of the codec.
_CODECS = {"zstd": "zstd", "gz": "gzip", "gzip": "gzip", "br": "brotli", "bz2": "bz2"}

# Most data shrink to more than a thousandth, but for short ones.
_RATIO, _LEAST_BYTES = 1000, 64 << 20


def unzip(
    data: bytes, kind: str, num_bytes: int | None, *, url: str, guess: int = 0
) -> NDArray[np.uint8]:
    """Decompress ("zstd", "zstd:7", ...) `num_bytes`, or what `guess` or the ratio allow."""
    with imports_of("parquet", "compressed shards need pyarrow"):
        import pyarrow as pa
    name = kind.partition(":")[0]
    if name not in _CODECS and name != "snappy":
        raise DataError(
            f"compressed by {kind!r}; {', '.join(sorted(_CODECS))} and snappy are read", url=url
        )
    with as_data_error(f"the {name} data is damaged", url=url):
        if name == "snappy":
            read = pa.decompress(data, num_bytes, codec="snappy")
        else:
            # One byte more than there should be shows a content that is too long.
            most = max(guess, _LEAST_BYTES + _RATIO * len(data)) if num_bytes is None else num_bytes
            stream = pa.CompressedInputStream(pa.BufferReader(data), _CODECS[name])
            read = stream.read_buffer(most + 1)
        content = np.frombuffer(read, np.uint8)
        if num_bytes is None and name != "snappy" and len(content) > most:
            raise ValueError(f"{len(data)} bytes become more than {most}")
    if num_bytes is not None and len(content) != num_bytes:
        raise DataError(
            f"decompressed, it has {'more than' if len(content) > num_bytes else 'only'} "
            f"{min(len(content), num_bytes)} bytes; the index says {num_bytes}: was it cut?",
            url=url,
        )
    return content
