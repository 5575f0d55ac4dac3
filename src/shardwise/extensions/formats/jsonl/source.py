"""The source of JSON lines: the entries of objects, a line per sample.

Every file is scanned for its lines at the first use of the manifest, unless an index has them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardwise.base.arguments import near_name
from shardwise.base.columns import Column
from shardwise.base.errors import DataError
from shardwise.base.shown import shown
from shardwise.extensions.formats.jsonl.text import are_offsets, codec_of, find_lines, unzip_to_disk
from shardwise.extensions.formats.records.forms import VALUES, BadRowError, Form
from shardwise.extensions.formats.records.scanned import Found, KeptIndex, ScannedSource
from shardwise.extensions.formats.records.source import RecordFields, RecordShard
from shardwise.sources.manifest import Shard

_logger = logging.getLogger("shardwise")

_NAMES = (".jsonl", ".ndjson", ".json")
SUFFIXES = (".jsonl", ".ndjson", *(f"{name}{end}" for name in _NAMES for end in (".gz", ".zst")))
_RECORD = "record"
# Lines of the first file that say which fields there are.
_LOOKED_AT, _LOOKED_AT_BYTES = 1000, 8 << 20
_BOM = b"\xef\xbb\xbf"


class JsonLinesSource(ScannedSource):
    """Lines of files, by id; `shardwise.jsonl` documents the arguments."""

    _kind = "jsonl"

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        fields: Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(urls, suffixes=SUFFIXES, **options)
        self._asked = _check_fields(fields)
        # Fields that a process has warned of.
        self._left_out: set[str] = set()

    def _scan(self, url: str, known: Found | None) -> Found:
        """Find the offsets of the records in the text, int64 `[records + 1]`."""
        file = self._pool.get(url)
        stat = known.stat if known else file.stat()
        self._pool.pin(url, stat)
        codec = known.codec if known else codec_of(file)
        index = KeptIndex("jsonl", ".jli", url, stat, self._index_dir)
        offsets = index.load().get("offsets")
        if offsets is None or not are_offsets(offsets, None if codec else stat.num_bytes):
            offsets = known.places if known and known.places.size else find_lines(file, codec)
            index.save({"offsets": offsets.view(np.uint64)})
        return Found(stat, codec, offsets.view(np.int64))

    def _shard_of(self, url: str, found: Found) -> Shard:
        """The shard of a file, with the bytes of its text."""
        return Shard(url, len(found.places) - 1, int(found.places[-1]))

    @property
    def _is_zipped(self) -> bool:
        return any(lines.codec for lines in self._scan_files())

    def _open_shard(self, number: int) -> RecordShard:
        lines = self._found_in(number)
        starts, ends = lines.places[:-1], lines.places[1:]
        if lines.codec is None:
            return RecordShard(starts, ends, is_mapped=True)
        url = self.urls[number]
        text = unzip_to_disk(self._pool.get(url), lines.codec)
        if len(text) != lines.places[-1]:
            raise DataError(
                f"decompressed, it has {len(text)} bytes; its index says {lines.places[-1]}",
                url=url,
            )
        return RecordShard(starts, ends, text, is_mapped=True)

    @cached_property
    def _forms(self) -> Mapping[str, Form]:
        asked = self._asked
        if asked == ():
            return {_RECORD: VALUES}
        known, count, url = self._find_once("names", self._names_of_first_lines)
        if asked is None:
            return dict.fromkeys(known or (_RECORD,), VALUES)
        for name, is_optional in asked:
            if not is_optional and count and name not in known:
                raise DataError(
                    f"none of the first {count} lines has a field {name!r}, but "
                    f"{', '.join(map(repr, known))}; if later lines have it, add a question mark: "
                    f"{name + '?'!r}{near_name(name, known)}",
                    url=url,
                    field=name,
                )
        return {name: VALUES for name, _ in asked}

    def _names_of_first_lines(self) -> tuple[list[str], int, str]:
        """The entries of the first lines, in the order they are met; how many lines, and where."""
        for number, lines in enumerate(self._scan_files()):
            if len(lines.places) > 1:
                within = int(np.searchsorted(lines.places, _LOOKED_AT_BYTES, "right"))
                rows = np.arange(min(len(lines.places) - 1, _LOOKED_AT, max(within - 1, 1)))
                found = self._read_records(np.full(len(rows), number), rows)
                names: dict[str, None] = {}
                for row, text in enumerate(_texts(found)):
                    try:
                        names.update(dict.fromkeys(_object(text)))
                    except ValueError as error:
                        # Reading it raises the error, unless no line can be read.
                        if not row:
                            raise self._no_lines(number, text, error) from error
                return list(names), len(rows), self.urls[number]
        return [], 0, self.urls[0]

    def _no_lines(self, number: int, text: bytes, error: ValueError) -> DataError:
        hint = ""
        if text.strip() in (b"[", b"{") or text.lstrip().startswith(b"["):
            hint = "; `jq -c '.[]'` makes lines of one JSON array"
        return DataError(
            f"its first line is no sample: {error}{hint}", url=self.urls[number], offset=0
        )

    def _cut_columns(self, records: RecordFields, names: Sequence[str]) -> Mapping[str, Column]:
        rows: dict[str, list[Any]] = {name: [] for name in names}
        is_whole = self._asked == () or (self.fields == (_RECORD,) and self._asked is None)
        for row, text in enumerate(_texts(records)):
            try:
                if is_whole:
                    rows[_RECORD].append(_parse(text))
                    continue
                found = _object(text)
            except ValueError as error:
                raise BadRowError(row, str(error)) from error
            if self._asked is None and not found.keys() <= self._forms.keys() | self._left_out:
                self._tell_left_out(found)
            for name in names:
                rows[name].append(found.get(name))
        return rows

    def _tell_left_out(self, found: Mapping[str, Any]) -> None:
        more = sorted(found.keys() - self._forms.keys() - self._left_out)
        self._left_out.update(more)
        _logger.warning(
            "%s: a line has fields that the first %d lines lack, and that are left out: name all "
            "fields by fields=, these as %s",
            shown(self.urls[0]), _LOOKED_AT, [f"{name}?" for name in more],
        )  # fmt: skip


def _texts(records: RecordFields) -> Iterable[bytes]:
    ends = (records.starts + records.lengths).tolist()
    for start, end in zip(records.starts.tolist(), ends, strict=True):
        yield records.buffer[start:end].tobytes()


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text.removeprefix(_BOM).decode())
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the line is no JSON: {error}") from error


def _object(text: bytes) -> dict[str, Any]:
    value = _parse(text)
    if not isinstance(value, dict):
        raise ValueError(  # noqa: TRY004 - bytes of another kind are a bad value
            f"the line is no JSON object, but {text[:40].decode(errors='replace')!r}; fields=() "
            f"gives each line as the field {_RECORD!r}"
        )
    return value


def _check_fields(fields: Any) -> tuple[tuple[str, bool], ...] | None:
    """Names, and whether lines may lack each in general."""
    if fields is None:
        return None
    if isinstance(fields, str | bytes | Mapping) or not isinstance(fields, Iterable):
        raise TypeError(f"fields={fields!r:.80}: give a sequence of names, such as ('text',)")
    names = tuple(fields)
    if not all(isinstance(name, str) and name.removesuffix("?") for name in names):
        raise TypeError(f"fields={names!r:.80}: give names, such as ('text', 'language?')")
    asked = tuple((name.removesuffix("?"), name.endswith("?")) for name in names)
    if len(dict(asked)) < len(asked):
        raise ValueError(f"fields={names!r:.80}: give each name once")
    return asked
