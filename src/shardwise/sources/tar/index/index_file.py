"""The format of an index file, `<shard>.swi`: named columns behind a JSON header.

The layout is that of safetensors: 8 bytes with the header's length (little-endian), the header
(JSON: dtype, shape and byte range of each column, strings under `__metadata__`), then the raw
little-endian columns. The last column, `checksum`, is the CRC-32 of every byte before it.

A file's header is compared with the file's length and checksum before it is used. A column is
stored with one element where all its elements are equal.
"""

from __future__ import annotations

import json
import mmap
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import DataError
from shardwise.shown import shown

__all__ = ["IndexHeader", "decode", "encode", "map_columns", "read_header"]

_FORMAT = "shardwise-index"
_VERSION = "1"

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 16 << 20
# Most headers are shorter, and so take one read.
_FIRST_BYTES = 4096

_CHECKSUM_BYTES = 4

# An index in a directory of indexes: the shard's base name and a hash of its URL.
_HASHED_NAME = re.compile(r"(.*)/([^/]*)-[0-9a-f]{12}", re.DOTALL)

_DTYPES = {"U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
_NAMES = {1: "U8", 2: "U16", 4: "U32", 8: "U64"}


@dataclass(frozen=True, kw_only=True)
class IndexHeader:
    """The part of an index that is about the shard as a whole.

    Attributes:
        name: the shard's base name.
        num_bytes: its size when it was indexed.
        mtime_ns: its modification time then, in nanoseconds.
        etag: the object store's name of this version; "" for a local file.
        num_samples: samples in it.
        fields: the names of all fields, in the order in which they are first met.
        optional: those of them that some sample lacks.
        key_length: bytes of a key where all keys are of one length, else None.
        has_digests: whether the index holds a CRC-32 of every payload.
        has_end: whether the shard ends in a block of zeros, as a finished tar does.
        ignored: how many members can't be fields, by what they are ("directory", "link", ...).
        writer: the program that wrote the index.
    """

    name: str
    num_bytes: int
    mtime_ns: int
    num_samples: int
    fields: tuple[str, ...]
    optional: frozenset[str] = frozenset()
    key_length: int | None = None
    has_digests: bool = False
    has_end: bool = True
    ignored: Mapping[str, int] = field(default_factory=dict)
    writer: str = ""
    etag: str = ""

    def to_metadata(self) -> dict[str, str]:
        """As safetensors' metadata: strings only."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "name": self.name,
            "num_bytes": str(self.num_bytes),
            "mtime_ns": str(self.mtime_ns),
            **({"etag": self.etag} if self.etag else {}),
            "num_samples": str(self.num_samples),
            "fields": json.dumps(self.fields),
            "optional": json.dumps(sorted(self.optional)),
            "key_length": json.dumps(self.key_length),
            "has_digests": json.dumps(self.has_digests),
            "has_end": json.dumps(self.has_end),
            "ignored": json.dumps(dict(self.ignored), sort_keys=True),
            "writer": self.writer or f"shardwise {version('shardwise')}",
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> IndexHeader:
        """The reverse.

        Raises:
            ValueError: it is of another version, or not what `to_metadata` makes.
        """
        stated = (metadata.get("format"), metadata.get("version"))
        if stated != (_FORMAT, _VERSION):
            raise ValueError(f"format and version are {stated}, not {(_FORMAT, _VERSION)}")
        key_length = json.loads(metadata["key_length"])
        header = cls(
            name=str(metadata["name"]),
            num_bytes=int(metadata["num_bytes"]),
            mtime_ns=int(metadata["mtime_ns"]),
            num_samples=int(metadata["num_samples"]),
            fields=tuple(map(str, json.loads(metadata["fields"]))),
            optional=frozenset(map(str, json.loads(metadata["optional"]))),
            key_length=None if key_length is None else int(key_length),
            has_digests=json.loads(metadata["has_digests"]) is True,
            has_end=json.loads(metadata["has_end"]) is True,
            ignored={str(k): int(v) for k, v in json.loads(metadata["ignored"]).items()},
            writer=str(metadata["writer"]),
            etag=str(metadata.get("etag", "")),
        )
        counts = (header.num_samples, header.num_bytes, header.key_length or 0)
        if not all(0 <= count < 2**63 for count in counts) or abs(header.mtime_ns) >= 2**63:
            raise ValueError("a count is negative, or takes more than 64 bits")
        return header


def encode(header: IndexHeader, columns: Mapping[str, NDArray[Any]]) -> bytes:
    """An index file's bytes: equal input gives equal bytes."""
    # Wide columns first, so that all are aligned; the sort is stable.
    names = sorted(columns, key=lambda name: -columns[name].itemsize)
    described: dict[str, Any] = {"__metadata__": header.to_metadata()}
    parts = []
    start = 0
    for name in names:
        part = columns[name].astype(columns[name].dtype.newbyteorder("<"), copy=False).tobytes()
        described[name] = _describe(columns[name].itemsize, len(columns[name]), start)
        parts.append(part)
        start += len(part)
    described["checksum"] = _describe(1, _CHECKSUM_BYTES, start)
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join([*parts, checksum.to_bytes(_CHECKSUM_BYTES, "little")])


def _describe(itemsize: int, length: int, start: int) -> dict[str, Any]:
    return {
        "dtype": _NAMES[itemsize],
        "shape": [length],
        "data_offsets": [start, start + itemsize * length],
    }


def decode(
    data: bytes | memoryview | mmap.mmap, *, path: str, check: bool = True
) -> tuple[IndexHeader, dict[str, NDArray[Any]]]:
    """An index file's header and columns; the columns are views of `data`.

    Args:
        data: the whole file.
        path: its name, for messages.
        check: whether to verify the checksum, which reads all of `data`.

    Raises:
        DataError: the file is damaged, cut short, or of another version.
    """
    with memoryview(data) as view:
        header, descriptions, start = _parse(bytes(view[:_FIRST_BYTES]), view, path)
        try:
            columns = {
                name: _column(described, data, start, len(view))
                for name, described in descriptions.items()
            }
            checksum = columns.pop("checksum").tobytes()
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise _unusable(path, f"its table of columns is damaged ({error})") from error
        if check and zlib.crc32(view[:-_CHECKSUM_BYTES]).to_bytes(4, "little") != checksum:
            raise _unusable(path, "its checksum does not hold")
    return header, columns


def _column(described: Any, data: Any, start: int, num_bytes: int) -> NDArray[Any]:
    dtype = np.dtype(_DTYPES[described["dtype"]])
    (length,) = map(int, described["shape"])
    begin, end = map(int, described["data_offsets"])
    if not 0 <= begin <= end <= num_bytes - start or end - begin != length * dtype.itemsize:
        raise ValueError(f"bytes {begin} to {end} of {num_bytes - start} for {length} elements")
    return np.frombuffer(data, dtype, length, start + begin)


def map_columns(path: str, *, check: bool = True) -> tuple[IndexHeader, dict[str, NDArray[Any]]]:
    """Map an index file into memory: its pages are read when they are used.

    Raises:
        FileNotFoundError: there is none.
        DataError: it is damaged, cut short, or of another version.
    """
    with Path(path).open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise _unusable(path, "it is empty") from error
    return decode(data, path=path, check=check)


def read_header(path: str) -> IndexHeader:
    """Read an index file's header alone, without a look at its columns.

    Raises:
        FileNotFoundError: there is none.
        DataError: it is damaged or of another version.
    """
    with Path(path).open("rb", buffering=0) as file:
        first = file.read(_FIRST_BYTES)
        length = _LENGTH_BYTES + int.from_bytes(first[:_LENGTH_BYTES], "little")
        if len(first) < length <= _LENGTH_BYTES + _MAX_HEADER_BYTES:
            file.seek(0)
            first = file.read(length)
    return _parse(first, memoryview(first), path)[0]


def _parse(first: bytes, whole: memoryview, path: str) -> tuple[IndexHeader, dict[str, Any], int]:
    """The header, the description of the columns, and where these begin."""
    length = int.from_bytes(first[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(first) < _LENGTH_BYTES or length > _MAX_HEADER_BYTES or start > len(whole):
        raise _unusable(path, f"it holds {len(whole)} bytes and says its header takes {length}")
    try:
        described = json.loads(bytes(whole[_LENGTH_BYTES:start]))
        header = IndexHeader.from_metadata(described.pop("__metadata__"))
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError
    ) as error:  # fmt: skip
        raise _unusable(path, f"its header can't be read ({error})") from error
    return header, described, start


def _unusable(path: str, reason: str) -> DataError:
    return DataError(
        f"the index can't be used: {reason}; make it again with `{_remedy(path)}`", url=path
    )


def _remedy(path: str) -> str:
    """The command that makes an index again."""
    shard = path.removesuffix(".swi")
    hashed = _HASHED_NAME.fullmatch(shard)
    if hashed is None:
        return f"shardwise index --force {shown(shard)}"
    # In a directory of indexes, the name tells the shard's base name only.
    return f"shardwise index --force --index {hashed[1] or '/'} <path of {hashed[2]}>"
