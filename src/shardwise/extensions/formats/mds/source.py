"""The source of MDS shards: MosaicML Streaming's format, read without conversion.

`index.json` names the shards, their counts and their columns; each shard starts with the offsets of
its samples. Compressed shards are decompressed whole, and kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Column
from shardwise.base.errors import DataError, MissingShardError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.extensions.formats.records.forms import (
    STORED,
    Form,
    cut_list,
    little_endian,
    raw_picture,
)
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

_NUMBERS = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32",
    "float64",
)  # fmt: skip
# "pkl" among them: nothing is ever unpickled here.
_STORED = ("bytes", "jpeg", "png", "pkl")
# The first byte of an array whose dtype is not the column's.
_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
    34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip


def form_of(encoding: str) -> Form:
    """The form of an encoding's columns."""
    name, _, options = encoding.partition(":")
    if name == "ndarray":
        return _array_form(options)
    if encoding in _STORED:
        return STORED
    if encoding == "int":
        return Form(layout=((), little_endian("int64")))
    if encoding in _NUMBERS:
        return Form(layout=((), little_endian(encoding)))
    decode = _DECODERS.get(encoding)
    if decode is None:
        raise ValueError(f"the encoding {encoding!r} is not known")
    return Form(decode=decode)


def _array_form(options: str) -> Form:
    dtype, _, shape_text = options.partition(":")
    if dtype and dtype not in _NUMBERS:
        raise ValueError(f"an array of {dtype!r}")
    shape = tuple(map(int, shape_text.split(","))) if shape_text else None
    if dtype and shape is not None:
        return Form(layout=(shape, little_endian(dtype)))
    return Form(decode=partial(_array, dtype, shape))


def _array(dtype: str, shape: tuple[int, ...] | None, data: bytes) -> NDArray[Any]:
    at = 0
    if not dtype:
        if data[0] not in _DTYPES:
            raise ValueError(f"an array of the dtype number {data[0]}")
        dtype, at = _DTYPES[data[0]], 1
    if shape is None:
        # The number of axes, and in the two lowest bits the width of their lengths.
        num_axes, width = data[at] >> 2, 1 << (data[at] & 3)
        shape = tuple(np.frombuffer(data, f"<u{width}", num_axes, at + 1).tolist())
        at += 1 + num_axes * width
    return np.frombuffer(data[at:], little_endian(dtype)).reshape(shape).copy()


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("utf-8"))
    except InvalidOperation:
        raise ValueError(f"{data[:40]!r} is no number") from None


def _pictures(data: bytes) -> list[NDArray[Any]]:
    return [raw_picture(each) for each in cut_list(data, skip=4)]


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": partial(str, encoding="utf-8"),
    "json": json.loads,
    "str_int": int,
    "str_float": float,
    "str_decimal": _decimal,
    "pil": raw_picture,
    "jpeg_array": cut_list,
    "jpegarray": cut_list,
    "list[jpeg]": partial(cut_list, skip=4),
    "list[png]": partial(cut_list, skip=4),
    "list[pil]": _pictures,
}


class _Column(NamedTuple):
    """A column; `size` is a value's in bytes, None where each sample has the size."""

    name: str
    encoding: str
    size: int | None


@dataclass(frozen=True)
class _Stored:
    shard: Shard
    zip_url: str
    compression: str
    hashes: Mapping[str, str]


class _Index(NamedTuple):
    shards: list[_Stored]
    columns: list[_Column]


class MdsSource(RecordSource):
    """Samples in MDS shards, by id; `shardwise.mds` documents the arguments."""

    _noun = "streams"

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.urls = index_urls(urls)

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest("mds", [stored.shard for stored in self._index.shards])

    @cached_property
    def _index(self) -> _Index:
        shards: list[_Stored] = []
        columns: list[_Column] = []
        self._opened_ns = time.time_ns()
        for url in self.urls:
            document = read_index(self._pool, url)
            first = len(shards)
            if document.get("version") != 2 or not isinstance(document.get("shards"), list):
                raise DataError(
                    f"no MDS index: version {document.get('version')!r}, and version 2 is read"
                    f"{name_reader(document)}",
                    url=url,
                )
            for number, entry in enumerate(document["shards"]):
                with as_data_error(f"shard {number} of the index", url=url):
                    stored, own = _parse(entry, url)
                if shards and own != columns:
                    raise DataError(
                        f"shard {number} has the columns {_encodings(own)}, those before it "
                        f"{_encodings(columns)}: open them by themselves, and join them with "
                        "sw.concat",
                        url=url,
                    )
                columns = own
                shards.append(stored)
            with as_data_error("the index", url=url):
                refuse_repeats((each.shard.url for each in shards[first:]), in_index=True)
                zipped = [each.zip_url for each in shards[first:] if each.zip_url]
                refuse_repeats(zipped, in_index=True)
        return _Index(shards, columns)

    @cached_property
    def _forms(self) -> Mapping[str, Form]:
        forms = {}
        for name, encoding in _encodings(self._index.columns).items():
            with as_data_error(f"the encoding {encoding!r:.80}", url=self.urls[0], field=name):
                forms[name] = form_of(encoding)
        return forms

    @property
    def _is_zipped(self) -> bool:
        return any(stored.zip_url for stored in self._index.shards)

    def _open_shard(self, number: int) -> RecordShard:
        stored = self._index.shards[number]
        if stored.zip_url:
            try:
                return self._open_zipped(stored)
            except MissingShardError:
                # A reader of MosaicML's decompressed it, and did not keep the compressed shard.
                pass
        shard = stored.shard
        found = self._first_stat(shard.url).num_bytes
        return open_file_records(self._pool.get(shard.url), found, shard)

    def _open_zipped(self, stored: _Stored) -> RecordShard:
        url, shard = stored.zip_url, stored.shard
        data = self._pool.get(url).read(0, self._first_stat(url).num_bytes)
        for name, digest in stored.hashes.items():
            if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
                found = hashlib.new(name, data, usedforsecurity=False).hexdigest()
                if found != digest:
                    raise DataError(f"its {name} is {found}, and {digest} in the index", url=url)
        content = unzip(data, stored.compression, shard.num_bytes, url=url)
        return open_content(content, replace(shard, url=url))

    def _cut_columns(self, records: RecordFields, names: Sequence[str]) -> Mapping[str, Column]:  # noqa: ARG002
        columns = self._index.columns
        cut = cut_records(records, [column.size for column in columns])
        return {column.name: values for column, values in zip(columns, cut, strict=True)}


def _encodings(columns: Sequence[_Column]) -> dict[str, str]:
    return {column.name: column.encoding for column in columns}


def _parse(shard: Mapping[str, Any], url: str) -> tuple[_Stored, list[_Column]]:
    """Parse an entry of the index; KeyError, TypeError and ValueError report what is wrong."""
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
    raw_shard = Shard(
        beside(url, raw["basename"]), integer(shard["samples"]), integer(raw["bytes"])
    )
    stored = _Stored(
        raw_shard,
        zip_url=beside(url, zipped["basename"]) if zipped else "",
        compression=str(shard.get("compression") or ""),
        hashes=dict(zipped.get("hashes") or {}) if zipped else {},
    )
    return stored, list(map(_Column, names, encodings, sizes))
