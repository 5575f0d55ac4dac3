"""The format of an index file, `<shard>.swi`: a file of columns (`column_file`).

A file's header is compared with the file's length and checksum before it is used. A column is
stored with one element where all its elements are equal.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.shown import in_command
from shardwise.base.version import __version__
from shardwise.storage import FileStat
from shardwise.storage.column_file import (
    MALFORMED,
    ColumnFileError,
    decode_columns,
    parse_header,
    read_start,
    require_format,
)

_FORMAT = "shardwise-index"
# Earlier releases would read removed samples as zeros.
_VERSION, _VERSION_REMOVED = "1", "2"

# An index in a directory of indexes: the shard's base name and a hash of its URL.
_HASHED_NAME = re.compile(r"(.*)/([^/]*)-[0-9a-f]{12}", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class IndexHeader:
    """The part of an index that is about the shard as a whole; docs/format.md defines it.

    `removed` has the rows of samples that were removed, ascending: their payloads are zeros.
    """

    name: str
    num_bytes: int
    mtime_ns: int
    etag: str = ""
    num_samples: int
    fields: tuple[str, ...]
    optional: frozenset[str] = frozenset()
    key_length: int | None = None
    has_digests: bool = False
    has_end: bool = True
    ignored: Mapping[str, int] = field(default_factory=dict)
    writer: str = ""
    removed: tuple[int, ...] = ()

    @property
    def stat(self) -> FileStat:
        """The version of the shard that was indexed."""
        return FileStat(self.num_bytes, self.mtime_ns, self.etag)

    def to_metadata(self) -> dict[str, Any]:
        """The metadata of the file."""
        header = replace(self, writer=self.writer or f"shardwise {__version__}")
        version = _VERSION_REMOVED if self.removed else _VERSION
        texts = {"format": _FORMAT, "version": version, **vars(header)}
        return {k: v for k, v in texts.items() if v or k not in ("etag", "removed")}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> IndexHeader:
        """Parse the metadata of a file."""
        try:
            removed = tuple(map(int, json.loads(metadata.get("removed", "[]"))))
            require_format(metadata, _FORMAT, _VERSION_REMOVED if removed else _VERSION)
            key_length = _parse_json(metadata["key_length"])
            header = cls(
                name=str(metadata["name"]),
                num_bytes=int(metadata["num_bytes"]),
                mtime_ns=int(metadata["mtime_ns"]),
                num_samples=int(metadata["num_samples"]),
                fields=tuple(map(str, _parse_json(metadata["fields"]))),
                optional=frozenset(map(str, _parse_json(metadata["optional"]))),
                key_length=None if key_length is None else int(key_length),
                has_digests=_parse_json(metadata["has_digests"]) is True,
                has_end=_parse_json(metadata["has_end"]) is True,
                ignored={str(k): int(v) for k, v in _parse_json(metadata["ignored"]).items()},
                writer=str(metadata["writer"]),
                etag=str(metadata.get("etag", "")),
                removed=removed,
            )
            if any(a >= b for a, b in pairwise((-1, *removed, header.num_samples))):
                raise ValueError("its removed samples are not rows of it, in order")
            if "link" in header.ignored:
                raise ValueError("it is of a release that left hard links out")
            counts = (header.num_samples, header.num_bytes, header.key_length or 0)
            if not all(0 <= count < 2**63 for count in counts) or abs(header.mtime_ns) >= 2**63:
                raise ValueError("a count is negative, or takes more than 64 bits")
        except MALFORMED as error:
            raise ColumnFileError(f"its header can't be read ({error})") from error
        return header


@lru_cache(maxsize=256)
def _parse_json(text: str) -> Any:
    """A value of JSON, which is not changed: the shards of a dataset have few different ones."""
    return json.loads(text)


def decode(
    data: bytes | memoryview | mmap.mmap, *, path: str, check: bool = True
) -> tuple[IndexHeader, dict[str, NDArray[Any]]]:
    """An index file's header and columns, as of `decode_columns`; the path is for messages."""
    try:
        metadata, columns = decode_columns(data, check=check)
        return IndexHeader.from_metadata(metadata), columns
    except ColumnFileError as error:
        raise _unusable(path, str(error)) from error


def read_header(path: str) -> IndexHeader:
    """An index file's header alone; FileNotFoundError without one, DataError if damaged."""
    first = read_start(path)
    try:
        return IndexHeader.from_metadata(parse_header(first, memoryview(first))[0])
    except ColumnFileError as error:
        raise _unusable(path, str(error)) from error


def _unusable(path: str, reason: str) -> DataError:
    return DataError(
        f"the index can't be used: {reason}; make it again with `{_remedy(path)}`", url=path
    )


def _remedy(path: str) -> str:
    shard = path.removesuffix(".swi")
    hashed = _HASHED_NAME.fullmatch(shard)
    if hashed is None:
        return f"shardwise index --force {in_command(shard)}"
    # A name in a directory of indexes holds the shard's base name only.
    return f"shardwise index --force --index {in_command(hashed[1] or '/')} <path of {hashed[2]}>"
