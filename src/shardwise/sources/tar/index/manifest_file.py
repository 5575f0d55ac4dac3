"""The format of a manifest file, `train.swm`: what is known of each shard of a dataset.

A file of columns (`column_file`), 20 to 40 bytes per shard. It holds names relative to its own
location, counts, and tags of the version of each shard and index, to detect others. It holds no
query of a URL: that may be a signature.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.shown import shown, without_query
from shardwise.base.version import __version__
from shardwise.sources.manifest import narrow
from shardwise.sources.shard_names import NumberedNames, PackedNames, ShardNames
from shardwise.storage import FileStat
from shardwise.storage.column_file import (
    FIRST_BYTES,
    MALFORMED,
    ColumnFileError,
    decode_columns,
    encode_columns,
    parse_header,
    shrink,
    spread,
)

_FORMAT = "shardwise-manifest"
# Earlier releases would read removed samples as zeros.
_VERSION, _VERSION_REMOVED = "1", "2"

_FINGERPRINT = re.compile("[0-9a-f]{16}")
# Digits of a number in a name.
_MAX_WIDTH = 18
_MAX_COUNT = 2**62


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """The content of a manifest file, as docs/format.md has it; columns are `[shards]`.

    `removed` has the ids of samples that were removed, ascending, `history` the fingerprints of
    earlier versions, the oldest first.
    """

    fingerprint: str
    names: Sequence[str]
    samples: NDArray[Any]
    lengths: NDArray[Any]
    tags: NDArray[np.uint64]
    index_digests: NDArray[np.uint64]
    index_bytes: NDArray[Any]
    fields: tuple[str, ...]
    key_length: int | None = None
    has_digests: bool = False
    num_unfinished: int = 0
    writer: str = ""
    history: tuple[str, ...] = ()
    removed: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.uint8))


def version_path(url: str, number: int) -> str:
    """The path of an earlier version of a manifest file: train.swm.1, train.swm.2, ..."""
    return f"{without_query(url)}.{number}"


def tag_of(stat: FileStat) -> int:
    """A digest of a shard's ETag, else of its time of change: 64 bits, odd for an ETag."""
    text = f"etag {stat.etag}" if stat.etag else f"time {stat.mtime_ns}"
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    return number | 1 if stat.etag else number & ~1


def tag_says_etag(tag: int) -> bool:
    """Whether a tag was made of an ETag."""
    return bool(tag & 1)


def encode(content: ManifestFile) -> bytes:
    """A manifest file's bytes: equal input gives equal bytes."""
    names = ShardNames.of(content.names)
    parts = [astuple(p) if isinstance(p, NumberedNames) else len(p) for p in names.parts]
    metadata = {
        "format": _FORMAT,
        "version": _VERSION_REMOVED if len(content.removed) else _VERSION,
        "kind": "tar",
        "fingerprint": content.fingerprint,
        "num_shards": len(names),
        "num_samples": int(content.samples.sum()),
        "num_bytes": int(content.lengths.sum()),
        "fields": content.fields,
        "key_length": content.key_length,
        "has_digests": content.has_digests,
        "num_unfinished": content.num_unfinished,
        "names": parts,
        "writer": content.writer or f"shardwise {__version__}",
    }
    if content.history:
        metadata["history"] = content.history
    columns = {
        "tag": shrink(content.tags),
        "index_digest": shrink(content.index_digests),
        # Stored in full: the length of the file bounds how many shards it lists.
        "samples": narrow(content.samples),
        "bytes": shrink(narrow(content.lengths)),
        "index_bytes": shrink(narrow(content.index_bytes)),
    }
    if len(content.removed):
        columns["removed"] = narrow(content.removed)
    others = [
        name.encode("utf-8", "surrogateescape")
        for part in names.parts
        if not isinstance(part, NumberedNames)
        for name in part
    ]
    if others:
        ends = np.cumsum([len(name) for name in others], dtype=np.int64)
        columns["name_ends"] = narrow(ends)
        columns["names"] = np.frombuffer(b"".join(others), np.uint8)
    return encode_columns(metadata, columns)


def decode(data: bytes | memoryview | mmap.mmap, *, path: str) -> ManifestFile:
    """A manifest file's content; the columns are views of `data`."""
    try:
        with memoryview(data) as view:
            metadata = parse_header(bytes(view[:FIRST_BYTES]), view)[0]
        # Before anything else: another version may have other columns.
        _require_format(metadata)
        _, columns = decode_columns(data)
        return _content(metadata, columns)
    except _OtherVersionError as error:
        raise DataError(str(error), url=path) from error
    except ColumnFileError as error:
        raise _unusable(path, str(error)) from error
    except MALFORMED as error:
        raise _unusable(path, f"its header does not fit its columns ({error})") from error


class _OtherVersionError(Exception):
    """The file is a manifest of a version that this release does not read."""


def _require_format(metadata: Mapping[str, str]) -> None:
    if metadata["format"] != _FORMAT:
        raise ColumnFileError(f"it is of the format {metadata['format']!r:.80}, not {_FORMAT!r}")
    if metadata["version"] not in (_VERSION, _VERSION_REMOVED):
        raise _OtherVersionError(
            f"the manifest is of version {metadata['version']!r:.80}, and this release reads "
            f"{_VERSION!r} and {_VERSION_REMOVED!r}: update shardwise, or make it again with "
            "`shardwise index --merge`"
        )
    if metadata["kind"] != "tar":
        raise ColumnFileError(f"it is of {metadata['kind']!r:.80}, not of tar shards")


def _content(metadata: Mapping[str, str], columns: Mapping[str, NDArray[Any]]) -> ManifestFile:
    key_length = json.loads(metadata["key_length"])
    num_shards, num_samples, num_bytes, num_unfinished = (
        int(metadata[name]) for name in ("num_shards", "num_samples", "num_bytes", "num_unfinished")
    )
    samples = columns["samples"]
    if len(samples) != num_shards:
        raise ValueError(f"{len(samples)} counts for {num_shards} shards")
    content = ManifestFile(
        fingerprint=str(metadata["fingerprint"]),
        names=_names(metadata, columns, num_shards),
        samples=samples,
        lengths=spread(columns, "bytes", num_shards),
        tags=_of_64_bits(columns, "tag", num_shards),
        index_digests=_of_64_bits(columns, "index_digest", num_shards),
        index_bytes=spread(columns, "index_bytes", num_shards),
        fields=tuple(map(str, json.loads(metadata["fields"]))),
        key_length=None if key_length is None else int(key_length),
        has_digests=json.loads(metadata["has_digests"]) is True,
        num_unfinished=num_unfinished,
        writer=str(metadata["writer"]),
        removed=columns.get("removed", samples[:0]),
        history=tuple(map(str, json.loads(metadata.get("history", "[]")))),
    )
    removed = content.removed.astype(np.int64)
    if (np.diff(removed, prepend=-1, append=num_samples) <= 0).any():
        raise ValueError("the removed samples are not some of its own, in order")
    counts = (num_samples, num_bytes, content.key_length or 0, num_unfinished)
    if num_shards < 1 or not all(0 <= count <= _MAX_COUNT for count in counts):
        raise ValueError("a count is out of its range")
    if not _FINGERPRINT.fullmatch(content.fingerprint):
        raise ValueError("the fingerprint is not 16 hex digits")
    for name, column, stated in (
        ("samples", samples, num_samples),
        ("bytes", content.lengths, num_bytes),
    ):
        # Add up in floating point first: the sum of hostile numbers may not fit into 64 bits.
        if float(column.sum(dtype=np.float64)) > _MAX_COUNT or int(column.sum()) != stated:
            raise ValueError(f"the {name} of the shards do not sum up to {stated}")
    return content


def _names(
    metadata: Mapping[str, str], columns: Mapping[str, NDArray[Any]], num_shards: int
) -> ShardNames:
    """The names: patterns, and between them those that stand in the column."""
    others = PackedNames.of(columns.get("names"), columns.get("name_ends"))
    parts: list[Sequence[str]] = []
    start = 0
    for part in json.loads(metadata["names"]):
        if isinstance(part, int):
            parts.append(others.part(start, start + part))
            start += part
            continue
        prefix, suffix, first, width, count = part
        numbered = NumberedNames(str(prefix), str(suffix), int(first), int(width), int(count))
        is_sound = 0 < numbered.width <= _MAX_WIDTH and 0 < numbered.length <= _MAX_COUNT
        if not is_sound or not 0 <= numbered.first <= _MAX_COUNT:
            raise ValueError("a pattern of names is out of its range")
        parts.append(numbered)
    names = ShardNames(parts)
    if start != len(others) or len(names) != num_shards:
        raise ValueError(f"the names are not those of {num_shards} shards")
    return names


def _of_64_bits(columns: Mapping[str, NDArray[Any]], name: str, length: int) -> NDArray[np.uint64]:
    if columns[name].dtype != np.uint64:
        raise ValueError(f"{columns[name].dtype} where uint64 must be")
    return spread(columns, name, length)


def _unusable(path: str, reason: str) -> DataError:
    return DataError(
        f"the manifest can't be used: {reason}; get it again, or make it again with `shardwise "
        f"index --merge {shown(path)} URLS`",
        url=path,
    )
