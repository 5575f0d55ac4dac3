"""A Parquet file over the library's storage: its footer, and row groups column by column.

The bytes of the requested columns of a row group are read in one go, into one buffer, and pyarrow
decodes from there, without its threads: a pool of them does not live through a fork.
Format: https://parquet.apache.org/docs/file-format/

Metadata of column chunks is never accessed: `RowGroupMetaData.column()` ends the process where a
footer is damaged, or a column encrypted (pyarrow 26).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.extensions.tables.arrow.types import field_types
from shardwise.storage import File, FileStat, require_same
from shardwise.storage.known_formats import HEAD_BYTES, known_format

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
# The first read at the end of a file; longer footers take a second one.
_TAIL_BYTES = 64 << 10
# The header of a page of -1 bytes, which pyarrow refuses; after zeros it would try a longer one.
_NO_PAGE = np.frombuffer(b"\x15\x00\x15\x01\x15\x01\x00", np.uint8)
# Errors that pyarrow raises for damaged bytes.
_BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError)
# Part of pyarrow's error for a nested column that takes more than 2 GB. Source: Arrow's
# cpp/src/parquet/arrow/reader.cc, "Nested data conversions not implemented for chunked array".
_TOO_LARGE = "chunked array"


@dataclass(frozen=True)
class FileInfo:
    """A file's version and schema; rows, and bytes before compression, per row group.

    `footer` has the bytes of a remote Parquet file's footer, which processes need to read it.
    """

    url: str
    stat: FileStat
    schema: pa.Schema
    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]
    footer: bytes = b""


class ParquetFile:
    """A Parquet file; makes no request before it must. The arguments are those of `open_table`."""

    def __init__(self, file: File, stat: FileStat | None = None, footer: bytes = b"") -> None:
        self._file, self.url = file, file.url
        self._stat = file.stat() if stat is None else stat
        file.pin(self._stat)
        self._footer_bytes = footer
        self._metadata: pq.FileMetaData | None = None
        self._spans: dict[tuple[int, tuple[str, ...]], list[tuple[int, int]]] = {}

    def info(self) -> FileInfo:
        """The facts in the footer."""
        footer = self._footer()
        with as_data_error("its footer is damaged", url=self._file.url):
            schema = footer.schema.to_arrow_schema()
            field_types(schema)  # decodes the names, which may not be UTF-8
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        rows = [group.num_rows for group in groups]
        if min(rows, default=0) < 0 or sum(rows) != footer.num_rows:
            raise DataError(
                f"its footer is damaged: {sum(rows)} rows in its row groups, and "
                f"{footer.num_rows} in all",
                url=self._file.url,
            )
        sizes = [max(0, group.total_byte_size) for group in groups]
        return FileInfo(
            self._file.url,
            self._stat,
            schema,
            np.array(rows, dtype=np.int64),
            np.array(sizes, dtype=np.int64),
            self._footer_bytes if self._file.is_remote else b"",
        )

    def read(self, group: int, names: Sequence[str]) -> tuple[pa.Table, int]:
        """A row group's fields ("a.b" of structs) that are there, and the bytes read for it."""
        check_version(self._file, self._stat)
        footer = self._footer()
        # A read for each column of a local file is quicker than finding out what will be read.
        fetched = self._fetch(group, names) if self._file.is_remote else {}
        source = _BufferedFile(self._file, self._stat.num_bytes, fetched)
        with as_data_error(f"row group {group} can't be decoded", url=self._file.url):
            try:
                table = _decode_parts(source, footer, group, names)
            except (pa.ArrowException, OSError) as error:
                if "ecrypt" not in str(error):
                    raise
                raise DataError(
                    f"row group {group}: a column among {', '.join(map(repr, names))} is "
                    f"encrypted, which is not supported: name the other columns by columns= "
                    f"({error})",
                    url=self._file.url,
                ) from error
        num_rows = footer.row_group(group).num_rows
        if len(table) != num_rows:
            raise DataError(
                f"row group {group} has {len(table)} rows, its footer says {num_rows}",
                url=self._file.url,
            )
        return table, source.num_read

    def _footer(self) -> pq.FileMetaData:
        if self._metadata is None:
            if not self._footer_bytes:
                self._footer_bytes = _read_footer(self._file, self._stat.num_bytes)
            with as_data_error("its footer is damaged", url=self._file.url):
                self._metadata = pq.read_metadata(pa.BufferReader(self._footer_bytes))
        return self._metadata

    def spans(self, group: int, names: Sequence[str]) -> list[tuple[int, int]]:
        """The spans of bytes that some columns of a row group are decoded from."""
        known = self._spans.get((group, tuple(names)))
        if known is not None:
            return known
        footer = self._footer()
        recorder = _RangeRecorder(self._stat.num_bytes)
        # pyarrow reads all columns before it decodes the first one, which fails here by design.
        # Other damage is an error when the bytes are decoded.
        with contextlib.suppress(*_BROKEN):
            _decode(recorder, footer, group, names)
        spans = self._spans[group, tuple(names)] = sorted(recorder.spans)
        return spans

    def _fetch(self, group: int, names: Sequence[str]) -> dict[tuple[int, int], memoryview]:
        spans = self.spans(group, names)
        ends = list(accumulate(end - begin for begin, end in spans))
        buffer = np.empty(ends[-1] if ends else 0, np.uint8).data
        self._file.read_spans([begin for begin, _ in spans], ends, buffer, 0)
        return {
            (begin, end): buffer[stop - (end - begin) : stop]
            for (begin, end), stop in zip(spans, ends, strict=True)
        }


def check_version(file: File, stat: FileStat) -> None:
    """Check that a local file is the version that was opened; remote ones are pinned."""
    if not file.is_remote:
        require_same(stat, file.stat(), file.url)


def _read_footer(file: File, num_bytes: int) -> bytes:
    tail_bytes = min(num_bytes, _TAIL_BYTES)
    tail = file.read(num_bytes - tail_bytes, tail_bytes)
    if tail[-4:] == _ENCRYPTED:
        raise DataError("the Parquet file is encrypted, which is not supported", url=file.url)
    if num_bytes < 12 or tail[-4:] != _MAGIC:
        found = known_format(file.read(0, min(num_bytes, HEAD_BYTES)), num_bytes=num_bytes)
        if found and not found.startswith("a Parquet file"):
            raise DataError(f"no Parquet file, but {found}", url=file.url)
        raise DataError(
            f"it is not a Parquet file, or was cut short: its {num_bytes} bytes end in "
            f"{tail[-4:]!r}, not in {_MAGIC!r}",
            url=file.url,
        )
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if footer_bytes > num_bytes:
        raise DataError(
            f"its footer of {footer_bytes} bytes is longer than the file of {num_bytes}: damaged",
            url=file.url,
        )
    if footer_bytes > tail_bytes:
        tail = file.read(num_bytes - footer_bytes, footer_bytes)
    return tail[-footer_bytes:]


def _decode(
    source: _PyarrowFile,
    footer: pq.FileMetaData,
    group: int,
    names: Sequence[str],
    num_rows: int | None = None,
) -> pa.Table:
    """A row group, all or `num_rows` at a time; pages that have a checksum are verified."""
    reader = pq.ParquetFile(
        pa.PythonFile(source, mode="r"),
        metadata=footer,
        pre_buffer=False,
        page_checksum_verification=True,
    )
    if num_rows is None:
        return reader.read_row_group(group, columns=list(names), use_threads=False)
    return pa.Table.from_batches(
        reader.iter_batches(num_rows, row_groups=[group], columns=list(names), use_threads=False)
    )


def _decode_parts(
    source: _PyarrowFile, footer: pq.FileMetaData, group: int, names: Sequence[str]
) -> pa.Table:
    """A row group whole, or in parts: pyarrow decodes at most 2 GB of a nested column at a time."""
    num_rows = None
    while True:
        try:
            return _decode(source, footer, group, names, num_rows)
        except pa.ArrowNotImplementedError as error:
            if _TOO_LARGE not in str(error):
                raise
            if num_rows == 1:
                raise ValueError(
                    f"a row has more than 2 GB in a nested column of {', '.join(map(repr, names))}"
                    f": write smaller rows, and smaller row groups ({error})"
                ) from error
            num_rows = -(-(num_rows or footer.row_group(group).num_rows) // 8)


class _PyarrowFile:
    """The methods that `pa.PythonFile` needs of a file; `read_at` gives its bytes."""

    closed = False

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._num_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> Any:
        at = self._at
        left = max(0, self._num_bytes - at) if at >= 0 else 0
        size = left if size < 0 else min(size, left)
        self._at += size
        return self.read_at(at, size) if size else b""

    def read_at(self, at: int, size: int) -> Any:
        """Bytes that lie in the file."""
        raise NotImplementedError


class _RangeRecorder(_PyarrowFile):
    """A file that no column decodes from, which records what pyarrow reads: (start, end)."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.spans: set[tuple[int, int]] = set()
        self._left = num_bytes

    def read_at(self, at: int, size: int) -> Any:
        """A page that pyarrow refuses, and zeros, which take no memory."""
        self._left -= size
        if self._left < 0:  # a damaged footer: columns lie over each other
            return b""
        self.spans.add((at, at + size))
        column = np.zeros(size, np.uint8)
        column[: len(_NO_PAGE)] = _NO_PAGE[:size]
        return column.data


class _BufferedFile(_PyarrowFile):
    """A file with some ranges in memory; `num_read` counts the bytes read, those included."""

    def __init__(
        self, file: File, num_bytes: int, fetched: Mapping[tuple[int, int], memoryview]
    ) -> None:
        super().__init__(num_bytes)
        self._file = file
        self._fetched = fetched
        self.num_read = sum(map(len, fetched.values()))

    def read_at(self, at: int, size: int) -> Any:
        data = self._fetched.get((at, at + size))
        if data is None:
            self.num_read += size
            return self._file.read(at, size)
        return data
