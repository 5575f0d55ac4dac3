"""The container of indexes, manifests, sidecars and kept arrays: columns behind a JSON header.

The layout is that of safetensors: 8 bytes with the header's length (little-endian), the header
(JSON: dtype, shape and byte range of each column, strings under `__metadata__`), then the raw
little-endian columns. The last column, `checksum`, is the CRC-32 of every byte before it. Other
bytes may follow where a reader takes ranges of them.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.storage.write import atomic_write

# Most headers are shorter, and so take one read.
FIRST_BYTES = 4096

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 16 << 20
_CHECKSUM_BYTES = 4

_DTYPES = {"U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
_NAMES = {1: "U8", 2: "U16", 4: "U32", 8: "U64"}


# Errors that a reader meets in metadata or descriptions that are JSON of another form.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)


class ColumnFileError(ValueError):
    """The bytes are not a file of columns, or are damaged; the message is a clause."""


def encode_columns(metadata: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a file: equal input gives equal bytes.

    Args:
        metadata: str as it is, all else as JSON.
        columns: unsigned numbers in one dimension.
    """
    return b"".join(_parts(metadata, columns))


def texts_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata as a file has it: str as it is, all else as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=sorted)
        for name, value in metadata.items()
    }


def write_columns(
    path: str | os.PathLike[str], metadata: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]
) -> None:
    """Write the file whole or not at all, in a folder that is made; OSError if that fails."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        for part in _parts(metadata, columns):
            file.write(part)


def _parts(metadata: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> list[Any]:
    # Wide columns first, so that all are aligned; the sort is stable.
    names = sorted(columns, key=lambda name: -columns[name].itemsize)
    described: dict[str, Any] = {"__metadata__": texts_of(metadata)}
    parts: list[Any] = []
    start = 0
    for name in names:
        column = columns[name]
        parts.append(np.ascontiguousarray(column, column.dtype.newbyteorder("<")).data)
        described[name] = _describe(column.itemsize, len(column), start)
        start += column.nbytes
    described["checksum"] = _describe(1, _CHECKSUM_BYTES, start)
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [*parts, checksum.to_bytes(_CHECKSUM_BYTES, "little")]


def _describe(itemsize: int, length: int, start: int) -> dict[str, Any]:
    return {
        "dtype": _NAMES[itemsize],
        "shape": [length],
        "data_offsets": [start, start + itemsize * length],
    }


def decode_columns(
    data: bytes | memoryview | mmap.mmap, *, check: bool = True
) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """A file's metadata, all strings, and its columns, views of `data`; `check` reads them all."""
    with memoryview(data) as view:
        metadata, descriptions, start = parse_header(bytes(view[:FIRST_BYTES]), view)
        try:
            columns = {
                name: _column(described, data, start, len(view))
                for name, described in descriptions.items()
            }
            checksum = columns.pop("checksum").tobytes()
        except MALFORMED as error:
            raise ColumnFileError(
                f"it is cut, or its table of columns is damaged ({error})"
            ) from error
        if check and zlib.crc32(view[:-_CHECKSUM_BYTES]).to_bytes(4, "little") != checksum:
            raise ColumnFileError("its checksum does not hold")
    return metadata, columns


def _column(described: Any, data: Any, start: int, num_bytes: int) -> NDArray[Any]:
    dtype = np.dtype(_DTYPES[described["dtype"]])
    (length,) = map(int, described["shape"])
    begin, end = map(int, described["data_offsets"])
    if not 0 <= begin <= end <= num_bytes - start or end - begin != length * dtype.itemsize:
        raise ValueError(f"bytes {begin} to {end} of {num_bytes - start} for {length} elements")
    return np.frombuffer(data, dtype, length, start + begin)


def read_columns(
    read: Callable[[int, int], bytes],
) -> tuple[dict[str, str], dict[str, NDArray[Any]], int]:
    """Read metadata and columns, and where the bytes after them start.

    `read(start, stop)` returns the bytes there are, which may be fewer.
    """
    first = read(0, FIRST_BYTES)
    length = _LENGTH_BYTES + int.from_bytes(first[:_LENGTH_BYTES], "little")
    if len(first) < length <= _LENGTH_BYTES + _MAX_HEADER_BYTES:
        first = read(0, length)
    _, descriptions, start = parse_header(first, memoryview(first))
    try:
        end = start + int(descriptions["checksum"]["data_offsets"][1])
    except MALFORMED as error:
        raise ColumnFileError(f"its header has no checksum ({error})") from error
    return *decode_columns(read(0, max(end, start))), end


def require_format(metadata: Mapping[str, str], name: str, version: str) -> None:
    """Raise ColumnFileError for a file of another kind or version."""
    stated = (metadata.get("format"), metadata.get("version"))
    if stated != (name, version):
        raise ColumnFileError(f"format and version are {stated}, not {(name, version)}")


def read_start(path: str) -> bytes:
    """The first bytes of a file, with its whole header."""
    # Read by the descriptor: a file object costs three times as much.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        first = os.read(fd, FIRST_BYTES)
        length = _LENGTH_BYTES + int.from_bytes(first[:_LENGTH_BYTES], "little")
        if len(first) < length <= _LENGTH_BYTES + _MAX_HEADER_BYTES:
            first = os.pread(fd, length, 0)
    finally:
        os.close(fd)
    return first


def parse_header(first: bytes, whole: memoryview) -> tuple[dict[str, str], dict[str, Any], int]:
    """The metadata, the description of the columns, and where these start.

    `whole` is all of the file, or as much as the header takes; `first` its first bytes.
    """
    if not first:
        raise ColumnFileError("the file is empty (0 bytes)")
    length = int.from_bytes(first[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(first) < _LENGTH_BYTES or length > _MAX_HEADER_BYTES or start > len(whole):
        raise ColumnFileError(
            f"it holds {len(whole):,} bytes, and the first, {first[:_LENGTH_BYTES]!r}, say that "
            f"its header takes {length:,}: it is cut, or another kind of file"
        )
    try:
        text = first if start <= len(first) else whole
        described = json.loads(bytes(text[_LENGTH_BYTES:start]))
        metadata = described.pop("__metadata__")
        is_text = all(isinstance(value, str) for value in metadata.values())
    except MALFORMED as error:
        raise ColumnFileError(f"its header can't be read ({error})") from error
    if not is_text:
        raise ColumnFileError("its metadata are not strings")
    return metadata, described, start


class MappedFile(mmap.mmap):
    """A mapped file that knows its path."""

    path = ""


def map_file(path: str) -> MappedFile | bytes:
    """A file's bytes, whose pages are read when they are used."""
    with Path(path).open("rb") as file:
        try:
            mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            # An empty file can't be mapped.
            return b""
    mapped.path = str(Path(path).absolute())
    return mapped


def place_of(array: NDArray[Any]) -> tuple[str, int, Any, Any, Any] | None:
    """Return the arguments of `map_array` for a read-only array that is a part of a mapped file."""
    path, start = "", 0
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        if isinstance(base, np.memmap) and base.filename:
            path, start = str(base.filename), base.offset - base.offset % mmap.ALLOCATIONGRANULARITY
        base = base.obj if isinstance(base, memoryview) else base.base
    path = base.path if isinstance(base, MappedFile) else path
    if array.flags.writeable or not isinstance(base, mmap.mmap) or not Path(path).is_file():
        return None
    start += array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    return path, start, array.dtype, array.shape, array.strides


def map_array(path: str, start: int, dtype: Any, shape: Any, strides: Any) -> NDArray[Any]:
    """Map an array in a file, which is only read."""
    return np.ndarray(shape, dtype, map_file(path), start, strides)


def shrink(column: NDArray[Any]) -> NDArray[Any]:
    """One element of a column, if all are equal."""
    return column[:1] if len(column) and (column == column[0]).all() else column


def spread(columns: Mapping[str, NDArray[Any]], name: str, length: int) -> NDArray[Any]:
    """The reverse: a column of `length` elements; ValueError if it has neither one nor as many."""
    column = columns[name]
    if len(column) == length:
        return column
    if len(column) != 1:
        raise ValueError(f"{len(column)} elements of {name} for {length}")
    # The same as broadcasting, in a tenth of the time.
    return np.ndarray((length,), column.dtype, column, strides=(0,))
