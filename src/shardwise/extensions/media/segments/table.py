"""The segments of a dataset's sounds: found from their rows alone, no sound is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import values_of
from shardwise.base.errors import DataError
from shardwise.extensions.media.clips.table import value_at
from shardwise.sources.protocol import Source

# Names of a row's start and length, and of its end where it has one in place of a length.
_BEGINS, _LENGTHS, _ENDS = ("offset", "start", "begin"), ("duration",), ("end", "stop")
_ROWS_AT_ONCE = 4096
_MAX_SECONDS = 1e9


@dataclass(frozen=True, eq=False)
class SegmentTable:
    """The segments of a dataset's sounds, in the order of the samples and of their rows.

    Attributes:
        sounds: int64 `[segments]`, ascending: the sample that a segment is of.
        rows: int32 `[segments]`, its row among those of the sample.
        offsets, durations: float64 `[segments]`, seconds.
        names: what else the rows have, in the order in which it was found.
    """

    sounds: NDArray[np.int64]
    rows: NDArray[np.int32]
    offsets: NDArray[np.float64]
    durations: NDArray[np.float64]
    names: tuple[str, ...]

    def segments_by(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Segments of each run of sounds, by the sound after each run's last."""
        return np.diff(np.searchsorted(self.sounds, ends), prepend=0).astype(np.int64)


def segment_table(
    source: Source, ids: NDArray[np.int64], fields: Sequence[str], cuts: str | None
) -> SegmentTable:
    """The segments of some samples.

    `cuts` is a field of JSON with a row, or a list of rows; None for samples whose `fields` are
    one.
    """
    found: list[tuple[int, int, float, float]] = []
    names: dict[str, None] = {}
    for low in range(0, len(ids), _ROWS_AT_ONCE):
        columns = source.read(ids[low : low + _ROWS_AT_ONCE], tuple(fields))
        values = [values_of(columns.fields[name]) for name in fields]
        for at, key in enumerate(columns.keys):
            row = {name: column[at] for name, column in zip(fields, values, strict=True)}
            try:
                rows = [row] if cuts is None else rows_in(row[fields[0]], cuts)
                found += [(low + at, n, *span_of(row, n)) for n, row in enumerate(rows)]
            except DataError as error:
                raise DataError(error.reason, key=key, field=fields[0]) from error
            if cuts is not None:
                names |= dict.fromkeys(name for row in rows for name in row)
    sounds, numbers, offsets, durations = np.array(found, np.float64).reshape(-1, 4).T
    taken = {*_BEGINS, *_LENGTHS, *_ENDS}
    return SegmentTable(
        sounds.astype(np.int64), numbers.astype(np.int32), offsets.copy(), durations.copy(),
        tuple(name for name in names if name not in taken),
    )  # fmt: skip


def rows_in(value: Any, cuts: str) -> list[Mapping[str, Any]]:
    """The rows of segments in the JSON of a sample; DataError if it has no rows."""
    value = value_at(value, cuts)
    rows = [value] if isinstance(value, Mapping) else value
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise DataError(
            f"cuts={cuts!r} must be a row or a list of rows such as "
            f'{{"offset": 1.5, "duration": 2.5}}, and is {type(value).__name__}'
        )
    return rows


def span_of(row: Mapping[str, Any], number: int) -> tuple[float, float]:
    """Offset and duration of a row in seconds.

    >>> span_of({"start": 1.5, "end": 4.0, "text": "a"}, 0)
    (1.5, 2.5)
    """
    begin = next((row[name] for name in _BEGINS if row.get(name) is not None), 0.0)
    length = next((row[name] for name in _LENGTHS if row.get(name) is not None), None)
    end = next((row[name] for name in _ENDS if row.get(name) is not None), None)
    try:
        offset = float(begin)
        duration = float(end) - offset if length is None else float(length)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        offset, duration = 0.0, 0.0
    if not (0 <= offset < _MAX_SECONDS and 0 < duration < _MAX_SECONDS):
        raise DataError(
            f"row {number} is {dict(row)!r:.80}: give offset and duration in seconds, or start and "
            'end, as {"offset": 1.5, "duration": 2.5}'
        )
    return offset, duration
