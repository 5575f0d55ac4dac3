"""The source of LitData's chunks: what its `optimize` writes, read without conversion.

`index.json` names the chunks, their counts, the tree of a sample and the serialiser of each leaf;
each chunk starts with the offsets of its samples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardwise.base.columns import BytesColumn, Column, values_of
from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.extensions.formats.litdata import nested
from shardwise.extensions.formats.litdata.arrow_rows import (
    FOOTER_BYTES,
    MAGIC,
    SERIALIZERS,
    open_rows,
)
from shardwise.extensions.formats.litdata.frames import open_frames
from shardwise.extensions.formats.litdata.serializers import form_of
from shardwise.extensions.formats.litdata.tree import Node, fields_of, parse
from shardwise.extensions.formats.records.forms import VALUES, BadRowError, Form, column_of
from shardwise.extensions.formats.records.index_json import (
    index_urls,
    integer,
    name_reader,
    read_index,
)
from shardwise.extensions.formats.records.layout import cut_records, open_content, open_file_records
from shardwise.extensions.formats.records.source import RecordFields, RecordShard, RecordSource
from shardwise.extensions.formats.records.unzip import unzip
from shardwise.sources.manifest import Manifest, Shard
from shardwise.storage.url_patterns import refuse_repeats
from shardwise.storage.urls import beside


@dataclass(frozen=True)
class _Index:
    chunks: tuple[Shard, ...]
    serializers: tuple[str, ...]
    forms: tuple[Form, ...]
    nodes: Mapping[str, Node]
    compression: str
    level: str
    may_have_rows: bool


class LitDataSource(RecordSource):
    """Samples in LitData's chunks, by id; `shardwise.litdata` documents the arguments."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not isinstance(url, str | os.PathLike):
            raise TypeError(f"url={url!r:.80}: give a directory; sw.concat joins several datasets")
        self.urls = index_urls(url)
        self.url = self.urls[0]

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest("litdata", self._index.chunks)

    @cached_property
    def _index(self) -> _Index:
        self._opened_ns = time.time_ns()
        document = read_index(self._pool, self.url)
        config, chunks = document.get("config"), document.get("chunks")
        if not isinstance(config, dict) or not isinstance(chunks, list):
            reader = name_reader(document)
            raise DataError(
                f"no index of LitData: it has no config or no chunks{reader}", url=self.url
            )
        with as_data_error("the index can't be used", url=self.url):
            index = self._parse(config, chunks)
            refuse_repeats((chunk.url for chunk in index.chunks), in_index=True)
        return index

    def _parse(self, config: Mapping[str, Any], chunks: Sequence[Any]) -> _Index:
        if config.get("encryption"):
            raise ValueError("the chunks are encrypted")
        loader = config.get("item_loader") or "PyTreeLoader"
        if loader == "TokensLoader":
            raise ValueError("the chunks are tokens, of TokensLoader: sw.tokens reads them")
        if loader != "PyTreeLoader":
            raise ValueError(
                f"the chunks are for {loader!r:.40}, and those of PyTreeLoader are read"
            )
        serializers = tuple(map(str, config["data_format"]))
        tree = parse(config["data_spec"], len(serializers))
        shards = [
            Shard(
                beside(self.url, chunk["filename"]),
                integer(chunk["chunk_size"]),
                integer(chunk["chunk_bytes"]),
            )
            for chunk in chunks
        ]
        compression = str(config.get("compression") or "")
        level = str(config.get("compression_level") or "chunk") if compression else ""
        if level not in ("", "chunk", "batch", "sample"):
            raise ValueError(f"compression_level {level!r:.40}")
        return _Index(
            chunks=tuple(shards),
            serializers=serializers,
            forms=tuple(map(form_of, serializers)),
            nodes=fields_of(tree),
            compression=compression,
            level=level,
            may_have_rows=bool(config.get("types")) and SERIALIZERS.issuperset(serializers),
        )

    @cached_property
    def _forms(self) -> Mapping[str, Form]:
        index = self._index
        return {
            name: index.forms[node.leaves.start] if node.is_leaf else VALUES
            for name, node in index.nodes.items()
        }

    @property
    def _is_zipped(self) -> bool:
        return self._index.may_have_rows or self._index.level in ("chunk", "batch")

    def _open_shard(self, number: int) -> RecordShard:
        index = self._index
        chunk = index.chunks[number]
        num_bytes = self._first_stat(chunk.url).num_bytes
        file = self._pool.get(chunk.url)
        has_footer = index.may_have_rows and num_bytes >= FOOTER_BYTES
        if has_footer and file.read(num_bytes - len(MAGIC), len(MAGIC)) == MAGIC:
            return open_rows(file.read(0, num_bytes), chunk, index.nodes, index.serializers)
        if index.level in ("", "sample"):
            return open_file_records(file, num_bytes, chunk)
        data = file.read(0, num_bytes)
        if index.level == "batch":
            return open_frames(data, chunk, index.compression)
        # The index has the length of the content, which some versions of LitData got wrong.
        content = unzip(data, index.compression, None, url=chunk.url, guess=chunk.num_bytes)
        return open_content(content, chunk)

    def _cut_columns(self, records: RecordFields, names: Sequence[str]) -> Mapping[str, Column]:
        index = self._index
        if index.level == "sample":
            records = _unzip_records(records, index.compression)
        leaves = cut_records(records, [None] * len(index.forms))
        columns = {}
        for name in names:
            try:
                columns[name] = self._field(name, index.nodes[name], leaves)
            except BadRowError as error:
                error.field = name
                raise
        return columns

    def _field(self, name: str, node: Node, leaves: Sequence[BytesColumn]) -> Column:
        if node.is_leaf:
            leaf = node.leaves.start
            if name in self._undecoded and self._index.serializers[leaf] == "json":
                # Whichever form it is stored in.
                return BytesColumn.of(values_of(column_of(_AS_JSON, leaves[leaf])))
            return leaves[leaf]
        values = {
            leaf: values_of(column_of(self._index.forms[leaf], leaves[leaf]))
            for leaf in node.leaves
        }
        num_rows = len(leaves[0]) if leaves else 0
        return [
            node.value({leaf: of_leaf[row] for leaf, of_leaf in values.items()})
            for row in range(num_rows)
        ]


_AS_JSON = Form(decode=nested.as_json)


def _unzip_records(records: RecordFields, compression: str) -> RecordFields:
    """Records that are each compressed by themselves."""
    contents = []
    for row, (start, length) in enumerate(
        zip(records.starts.tolist(), records.lengths.tolist(), strict=True)
    ):
        data = records.buffer[start : start + length].tobytes()
        try:
            contents.append(unzip(data, compression, None, url=""))
        except DataError as error:
            raise BadRowError(row, error.reason) from error
    lengths = np.array([len(content) for content in contents], np.int64)
    buffer = np.concatenate([np.empty(0, np.uint8), *contents])
    return RecordFields(buffer, np.cumsum(lengths) - lengths, lengths)
