"""The source of MDS shards: MosaicML Streaming's format, read without conversion.

`index.json` names the shards, their counts and their columns; each shard begins with the offsets of
its samples. Compressed shards are decompressed whole, and kept.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardwise.columns import Column
from shardwise.errors import DataError, MissingShardError
from shardwise.shown import shown
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.mds.encodings import form_of
from shardwise.sources.records.forms import Form
from shardwise.sources.records.index_json import beside, index_urls, integer, read_index
from shardwise.sources.records.layout import cut_records, open_content, open_file_records
from shardwise.sources.records.source import RecordFields, RecordShard, RecordSource
from shardwise.sources.records.unzip import unzip
from shardwise.storage import StorageOptions


@dataclass(frozen=True)
class _Columns:
    """The columns of a shard.

    Attributes:
        names: in the shard's order.
        encodings: of each.
        sizes: of each in bytes; None where each sample has the size.
    """

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


@dataclass(frozen=True)
class _File:
    """One shard by the index.

    Attributes:
        url: of the file with all samples as they are.
        num_bytes: its length.
        num_samples: in it.
        zip_url: of the compressed file; "" if there is none.
        compression: how.
        hashes: of the compressed file, by the name of the algorithm.
    """

    url: str
    num_bytes: int
    num_samples: int
    zip_url: str
    compression: str
    hashes: Mapping[str, str]


@dataclass(frozen=True)
class _Index:
    """All shards and their columns."""

    files: tuple[_File, ...]
    columns: _Columns


class MdsSource(RecordSource):
    """Samples in MDS shards, by id; see `shardwise.mds`.

    Args:
        urls: directories with an `index.json` each, or these files.
        storage: how remote shards are reached; None for the defaults.
        memory_bytes: of the decompressed shards that a process keeps, which are four at least.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        storage: StorageOptions | None = None,
        memory_bytes: int = 1 << 30,
    ) -> None:
        super().__init__(storage=storage, memory_bytes=memory_bytes)
        self.urls = index_urls(urls)

    def __repr__(self) -> str:
        more = f", ... {len(self.urls)} streams" if len(self.urls) > 1 else ""
        return f"MdsSource({shown(self.urls[0])!r}{more})"

    @cached_property
    def manifest(self) -> Manifest:
        """The shards of all indexes, in their order."""
        return Manifest(
            "mds", [Shard(f.url, f.num_samples, f.num_bytes) for f in self._index.files]
        )

    @cached_property
    def _index(self) -> _Index:
        files: list[_File] = []
        columns: _Columns | None = None
        self._opened_ns = time.time_ns()
        for url in self.urls:
            document = read_index(self._pool, url)
            if document.get("version") != 2 or not isinstance(document.get("shards"), list):
                raise DataError(
                    f"no MDS index: version {document.get('version')!r}, and version 2 is read",
                    url=url,
                )
            for number, shard in enumerate(document["shards"]):
                try:
                    file, own = _parse(shard, url)
                except (KeyError, TypeError, ValueError) as error:
                    raise DataError(f"shard {number} of the index: {error}", url=url) from error
                if columns is not None and own != columns:
                    raise DataError(
                        f"shard {number} has the columns {dict(zip(own.names, own.encodings))}, "  # noqa: B905
                        f"those before it {dict(zip(columns.names, columns.encodings))}: "  # noqa: B905
                        "open them by themselves, and join them with sw.concat",
                        url=url,
                    )
                columns = own
                files.append(file)
        return _Index(tuple(files), columns or _Columns((), (), ()))

    @cached_property
    def _forms(self) -> Mapping[str, Form]:
        columns, forms = self._index.columns, {}
        for name, encoding in zip(columns.names, columns.encodings, strict=True):
            try:
                forms[name] = form_of(encoding)
            except ValueError as error:
                raise DataError(str(error), url=self.urls[0], field=name) from error
        return forms

    @property
    def _is_zipped(self) -> bool:
        return any(file.zip_url for file in self._index.files)

    def _open_shard(self, number: int) -> RecordShard:
        file = self._index.files[number]
        if file.zip_url:
            try:
                return self._open_zipped(file)
            except MissingShardError:
                # What a reader of MosaicML's has decompressed, and has not kept compressed.
                pass
        found = self._first_stat(file.url).num_bytes
        return open_file_records(
            self._pool.get(file.url),
            found,
            num_records=file.num_samples,
            num_bytes=file.num_bytes,
            url=file.url,
        )

    def _open_zipped(self, file: _File) -> RecordShard:
        num_bytes = self._first_stat(file.zip_url).num_bytes
        data = self._pool.get(file.zip_url).read(0, num_bytes)
        for name, digest in file.hashes.items():
            if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
                found = hashlib.new(name, data, usedforsecurity=False).hexdigest()
                if found != digest:
                    raise DataError(
                        f"its {name} is {found}, and {digest} in the index", url=file.zip_url
                    )
        content = unzip(data, file.compression, file.num_bytes, url=file.zip_url)
        return open_content(content, num_records=file.num_samples, url=file.zip_url)

    def _cut(self, records: RecordFields, names: Sequence[str]) -> Mapping[str, Column]:  # noqa: ARG002
        columns = self._index.columns
        cut = cut_records(records, columns.sizes)
        return dict(zip(columns.names, cut, strict=True))


def _parse(shard: Mapping[str, Any], url: str) -> tuple[_File, _Columns]:
    """One entry of the index; KeyError, TypeError and ValueError say what is wrong with it."""
    kind = (shard["format"], shard["version"])
    if kind != ("mds", 2):
        raise ValueError(f"it is of the format {kind}, and ('mds', 2) is read")
    names, encodings = tuple(shard["column_names"]), tuple(shard["column_encodings"])
    sizes = tuple(size or None for size in shard["column_sizes"])
    if not len(names) == len(encodings) == len(sizes) == len(set(names)):
        raise ValueError(f"its columns do not fit together: {names}, {encodings}, {sizes}")
    if not all(isinstance(text, str) for text in (*names, *encodings)):
        raise ValueError(f"its columns are no names: {names}, {encodings}")
    sizes = tuple(None if size is None else integer(size) for size in sizes)
    raw, zipped = shard["raw_data"], shard.get("zip_data")
    file = _File(
        url=beside(url, raw["basename"]),
        num_bytes=integer(raw["bytes"]),
        num_samples=integer(shard["samples"]),
        zip_url=beside(url, zipped["basename"]) if zipped else "",
        compression=str(shard.get("compression") or ""),
        hashes=dict(zipped.get("hashes") or {}) if zipped else {},
    )
    return file, _Columns(names, encodings, sizes)
