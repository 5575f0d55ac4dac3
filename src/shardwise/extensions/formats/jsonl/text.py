"""The text of a file of JSON lines, plain or compressed, and where its records start.

A record is a line with the blank lines after it, the first with those before it, too: they fill the
text. Format: https://jsonlines.org
"""

from __future__ import annotations

import io
import mmap
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, imports_of
from shardwise.base.foreign_bytes import as_data_error
from shardwise.storage import File
from shardwise.storage.known_formats import HEAD_BYTES, known_format

_READ_BYTES = 8 << 20
_BLANK = np.frombuffer(b" \t\r\n", np.uint8)
# A longer line is one array of JSON, or what a few compressed bytes become.
_MAX_LINE_BYTES = 256 << 20
# A format by its first bytes -> Arrow's name of the codec.
_CODECS = {"gzip": "gzip", "zstd": "zstd", "bzip2": "bz2"}


def codec_of(file: File) -> str | None:
    """The compression of a file; None for plain text, DataError for another format."""
    head = file.read(0, min(HEAD_BYTES, file.stat().num_bytes))
    found = known_format(head, may_be_text=True)
    if found is None:
        return None
    codec = _CODECS.get(found.partition(":")[0])
    if codec is None:
        raise DataError(f"no JSON lines, but {found}", url=file.url)
    return codec


def find_lines(file: File, codec: str | None) -> NDArray[np.int64]:
    """Scan for records: int64 `[records + 1]`, their starts in the text, and its length."""
    offsets = [np.zeros(1, np.int64)]
    at = 0
    for block in _line_blocks(_chunks(file, codec), file.url):
        text = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(text == ord("\n")) + 1
        if not len(ends) or ends[-1] < len(text):
            ends = np.append(ends, len(text))
        starts = np.append(0, ends[:-1])
        is_record = ~np.isin(text[starts], _BLANK)
        if not is_record.all():
            # Few lines start with a blank; only these may be blank as a whole.
            is_record = np.logical_or.reduceat(~np.isin(text, _BLANK), starts)
        offsets.append(starts[is_record] + at)
        at += len(text)
    starts = np.concatenate(offsets[1:]) if len(offsets) > 1 else np.zeros(0, np.int64)
    if not len(starts):
        return np.zeros(1, np.int64)
    starts[0] = 0
    return np.append(starts, at)


def are_offsets(offsets: NDArray[Any], num_bytes: int | None) -> bool:
    """Whether a kept column is of the kind that `find_lines` returns, of a text of this length."""
    if offsets.dtype != np.uint64 or not len(offsets) or offsets[0]:
        return False
    # In parts: the column is mapped, and may be of a billion lines.
    parts = (offsets[at : at + _READ_BYTES] for at in range(0, len(offsets), _READ_BYTES - 1))
    ascends = all((part[1:] > part[:-1]).all() for part in parts)
    return ascends and int(offsets[-1]) == (offsets[-1] if num_bytes is None else num_bytes)


def unzip_to_disk(file: File, codec: str) -> NDArray[np.uint8]:
    """The text of a compressed file, mapped from a temporary file that has no name."""
    with tempfile.TemporaryFile() as text:
        for chunk in _chunks(file, codec):
            text.write(chunk)
        text.flush()
        if not text.tell():
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(text.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _line_blocks(chunks: Iterator[bytes], url: str) -> Iterator[bytes]:
    """The text in blocks of whole lines."""
    parts: list[bytes] = []
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        parts.append(chunk[:cut] if cut else chunk)
        if len(parts) > _MAX_LINE_BYTES // _READ_BYTES:
            raise DataError(
                f"a line has more than {_MAX_LINE_BYTES:,} bytes: it is no sample", url=url
            )
        if cut:
            yield b"".join(parts)
            parts = [chunk[cut:]] if cut < len(chunk) else []
    if parts:
        yield b"".join(parts)


def _chunks(file: File, codec: str | None) -> Iterator[bytes]:
    stored = _Reader(file)
    if codec is None:
        yield from iter(lambda: stored.read(_READ_BYTES), b"")
        return
    with imports_of("parquet", "compressed JSON lines need pyarrow"):
        import pyarrow as pa
    with as_data_error(f"the {codec} data is damaged or cut", url=file.url):
        stream = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), codec)
    while True:
        with as_data_error(f"the {codec} data is damaged or cut", url=file.url):
            chunk = stream.read(_READ_BYTES)
        if not chunk:
            return
        yield chunk


class _Reader(io.RawIOBase):
    """A `File` as a stream, for Arrow."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._num_bytes = file.stat().num_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = self._num_bytes - self._at
        count = left if size is None or size < 0 else min(size, left)
        data = bytes(self._file.read(self._at, count)) if count else b""
        self._at += len(data)
        return data
