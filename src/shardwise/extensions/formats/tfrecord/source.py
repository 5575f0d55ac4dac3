"""The source of TFRecord files: records by number, and the features of `tf.train.Example`.

Every file is scanned for its records at the first use of the manifest, unless an index has them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from shardwise.base.arguments import near_name
from shardwise.base.columns import BytesColumn, Column, PayloadColumn
from shardwise.base.errors import DataError
from shardwise.base.shown import shown
from shardwise.extensions.formats.records.forms import STORED, VALUES, BadRowError, Form
from shardwise.extensions.formats.records.scanned import Found, ScannedSource
from shardwise.extensions.formats.records.source import RecordFields, RecordShard
from shardwise.extensions.formats.tfrecord.example import KINDS, Steps, Values, parse_example
from shardwise.extensions.formats.tfrecord.scan import find_records, masked_crc32c
from shardwise.sources.manifest import Shard

_logger = logging.getLogger("shardwise")

_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")
_RECORD = "record"
# A feature that none of so many records has is misspelt.
_MIN_LOOKED_AT = 1000
_FIRST_READ, _MAX_READ = 64 << 10, 8 << 20


class _Feature(NamedTuple):
    """The form of a feature: one value of a kind, a list of them, or such a list per step."""

    kind: str
    depth: int = 0


_STORED_BYTES = _Feature("bytes")


class TfRecordSource(ScannedSource):
    """Records of TFRecord files, by id; `shardwise.tfrecord` documents the arguments."""

    _kind = "tfrecord"

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        features: Mapping[str, str] | Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(urls, suffixes=_SUFFIXES, **options)
        self._asked = _check_features(features)
        # Features that a process has warned of.
        self._left_out: set[str] = set()

    def _scan(self, url: str, known: Found | None) -> Found:
        """Find the ends and lengths of the records' data, int64 `[2, records]`."""
        found = find_records(self._pool.get(url), self._index_dir, known)
        self._pool.pin(url, found.stat)
        return found

    def _shard_of(self, url: str, found: Found) -> Shard:
        return Shard(url, found.places.shape[1], found.stat.num_bytes)

    @cached_property
    def _features(self) -> Mapping[str, _Feature] | None:
        """The features to take of each record; None for the record itself."""
        found = self._find_once(f"features {self._asked}", self._find_features)
        return found and {name: _Feature(*each) for name, each in found.items()}

    def _find_features(self) -> Mapping[str, _Feature] | None:
        asked = self._asked
        if isinstance(asked, dict):
            self._require_features(asked)
            return {name: _feature(text) for name, text in asked.items()}
        if asked == ():
            return None
        first = next(self._records(), None)
        if first is None:
            return None if asked is None else dict.fromkeys(asked, _STORED_BYTES)
        url, data = first
        try:
            found = parse_example(data)
        except ValueError:
            found = {}
        known = {
            name: _Feature(kind, _depth(values)) for name, (kind, values) in found.items() if kind
        }
        if asked is None:
            return known or None
        for name in asked:
            if name not in known:
                raise DataError(
                    f"the first record has no feature {name!r}, but "
                    f"{', '.join(sorted(known)) or 'none'}: give its kind, as "
                    f"features={{{name!r}: 'bytes'}}",
                    url=url,
                )
        return {name: known[name] for name in asked}

    def _require_features(self, asked: Mapping[str, str]) -> None:
        """Refuse a name that no record of the first file has: it is misspelt, and would be None.

        A short file is looked at together with those after it. Names of optional kinds ("int64?")
        are not looked for.
        """
        missing = {name for name, text in asked.items() if not text.endswith("?")}
        known: set[str] = set()
        num_records = max(self._scan_files()[0].places.shape[1], _MIN_LOOKED_AT) if missing else 0
        count = 0
        for _, data in islice(self._records(), num_records):
            count += 1
            try:
                known.update(parse_example(data))
            except ValueError:
                # Reading it raises the error.
                continue
            missing -= known
            if not missing:
                return
        if known and missing:
            name = min(missing)
            raise DataError(
                f"none of the first {count} records has a feature {name!r}, but "
                f"{', '.join(map(repr, sorted(known)))}; if later records have it, add a question "
                f"mark: features={{{name!r}: '{asked[name]}?'}}{near_name(name, known)}",
                url=self.urls[0],
                field=name,
            )

    def _records(self) -> Iterator[tuple[str, bytes]]:
        for url, (_, _, (ends, lengths)) in zip(self.urls, self._scan_files(), strict=True):
            file, starts, at, num_bytes = self._pool.get(url), ends - lengths, 0, _FIRST_READ
            while at < len(ends):
                # Most looks end at the first record; the others read a file in few requests.
                begin = int(starts[at])
                until = max(at + 1, int(np.searchsorted(ends, begin + num_bytes, "right")))
                data = file.read(begin, int(ends[until - 1]) - begin)
                for start, end in zip(
                    starts[at:until] - begin, ends[at:until] - begin, strict=True
                ):
                    yield url, data[start:end]
                at, num_bytes = until, min(2 * num_bytes, _MAX_READ)

    def _tell_left_out(self, found: Mapping[str, tuple[str, Values | Steps]]) -> None:
        """Warn of the features that are not taken, since the first record lacks them."""
        more = sorted(found.keys() - (self._features or {}).keys() - self._left_out)
        self._left_out.update(more)
        kinds = {
            name: f"{found[name][0] or 'int64'}{'[]' * _depth(found[name][1])}?" for name in more
        }
        _logger.warning(
            "%s: a record has features that the first record lacks, and that are left out: name "
            "all that are meant by features=, these as %s", shown(self.urls[0]), kinds
        )  # fmt: skip

    @cached_property
    def _forms(self) -> Mapping[str, Form]:
        if self._features is None:
            return {_RECORD: STORED}
        return {
            name: STORED if feature == _STORED_BYTES else VALUES
            for name, feature in self._features.items()
        }

    def _open_shard(self, number: int) -> RecordShard:
        ends, lengths = self._found_in(number).places
        # The checksum of the data is read along with it.
        return RecordShard(ends - lengths, ends + 4)

    def _cut_columns(self, records: RecordFields, names: Sequence[str]) -> Mapping[str, Column]:
        buffer, starts, lengths = records.buffer, records.starts, records.lengths - 4
        ends = starts + lengths
        stored = buffer[ends[:, None] + np.arange(4)].view("<u4")[:, 0]
        wrong = np.flatnonzero(masked_crc32c(buffer, starts, lengths) != stored)
        if len(wrong):
            raise BadRowError(int(wrong[0]), "the record is damaged: its checksum differs")
        features = self._features
        if features is None:
            return {_RECORD: BytesColumn(buffer, starts, lengths)}
        rows: dict[str, list[Any]] = {name: [] for name in names}
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            try:
                data = buffer[start:end].tobytes()
                if self._asked is not None:
                    found = parse_example(data, names)
                else:
                    skipped = (features.keys() | self._left_out).difference(names)
                    found = parse_example(data, skipped=skipped)
                    if not found.keys() <= features.keys():
                        self._tell_left_out(found)
                for name in names:
                    rows[name].append(_value(name, features[name], found.get(name)))
            except ValueError as error:
                raise BadRowError(row, str(error)) from error
        return {
            name: PayloadColumn(values) if features[name] == _STORED_BYTES else values
            for name, values in rows.items()
        }


def _depth(values: Values | Steps) -> int:
    """The least depth that takes the values."""
    if isinstance(values, Steps):
        return 1 if all(len(step) == 1 for step in values) else 2
    return 0 if len(values) == 1 else 1


def _value(name: str, feature: _Feature, found: tuple[str, Values | Steps] | None) -> Any:
    if found is None:
        return None
    kind, values = found
    if not len(values) and not feature.depth:
        return None
    # A list without values may be of any kind, and steps without values of a deeper one.
    is_empty = not kind or not len(values)
    if not is_empty and kind != feature.kind:
        raise ValueError(
            f"the feature {name!r} is {kind}, and was {feature.kind} when it was asked"
        )
    if isinstance(values, Steps):
        return _taken_steps(name, feature, values)
    if feature.depth == 2:
        raise ValueError(
            f"the feature {name!r} has no steps: take it as features={{{name!r}: '{kind}[]'}}"
        )
    if feature.depth == 1:
        return _replace_empty(values, feature.kind)
    if len(values) != 1:
        raise ValueError(
            f"the feature {name!r} has {len(values)} values: take it as a list, "
            f"features={{{name!r}: '{kind}[]'}}"
        )
    return values[0] if isinstance(values, list) else values[0].item()


def _taken_steps(name: str, feature: _Feature, values: Steps) -> Any:
    if feature.depth == 2:
        return [_replace_empty(step, feature.kind) for step in values]
    depth = _depth(values)
    if depth > feature.depth:
        raise ValueError(
            f"{name!r} is a feature list, with up to {max(map(len, values))} values per step: "
            f"take it as features={{{name!r}: '{feature.kind}{'[]' * depth}'}}"
        )
    if feature.kind == "bytes":
        return [step[0] for step in values]
    return np.concatenate([np.empty(0, feature.kind), *values], dtype=feature.kind)


def _replace_empty(values: Values, kind: str) -> Values:
    if len(values):
        return values
    return [] if kind == "bytes" else np.empty(0, kind)


def _check_features(features: Any) -> dict[str, str] | tuple[str, ...] | None:
    if features is None:
        return None
    if isinstance(features, str | bytes) or not isinstance(features, Iterable):
        raise TypeError(f"features={features!r:.80}: give a dict of kinds, or a sequence of names")
    if isinstance(features, Mapping):
        asked = dict(features)
        for name, text in asked.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise TypeError(f"features={{{name!r:.80}: {text!r:.80}}}: give texts")
            _feature(text)
        return asked
    names = tuple(features)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"features={names!r:.80}: give names, each once")
    return names


def _feature(text: str) -> _Feature:
    kind, bracket, more = text.removesuffix("?").partition("[")
    depths = {"": 0, "[]": 1, "[][]": 2}
    if kind not in KINDS.values() or bracket + more not in depths:
        raise ValueError(
            f"the kind {text!r:.80} of a feature: give bytes, float32 or int64, with [] for a list "
            "or [][] for a list per step, and ? at the end where few records have it"
        )
    return _Feature(kind, depths[bracket + more])
