"""Rows as Lance gave them, and those among them that were asked for.

The columns of what was read are converted once, however often rows are taken from them; rows are
gathered part by part, never one by one. Imports numpy, columns, errors and the Arrow conversion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.columns import Column
from shardwise.errors import DataError
from shardwise.sources.tables.arrow import columns as arrow

__all__ = ["Found", "Part"]

# What a converted column may need beside Arrow's bytes: where rows begin, and how long they are.
_ROW_BYTES = 16


class Part:
    """Rows that were read together.

    Attributes:
        batch: the rows.
        num_rows: how many there are.
        row_bytes: the mean bytes of a row.
        num_bytes: what all take in memory, at most.
    """

    __slots__ = ("_held", "batch", "num_bytes", "num_rows", "row_bytes")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.num_rows: int = batch.num_rows
        self.row_bytes: float = batch.nbytes / max(1, batch.num_rows)
        self.num_bytes: int = batch.nbytes + _ROW_BYTES * batch.num_rows * batch.num_columns
        self._held: dict[tuple[str, ...], dict[str, arrow.Held]] = {}

    def columns(self, names: tuple[str, ...]) -> Mapping[str, arrow.Held]:
        """The fields, converted at their first use; two threads may both do it."""
        held = self._held.get(names)
        if held is None:
            held = {name: arrow.convert(arrow.leaf(self.batch, name)) for name in names}
            self._held[names] = held
        return held


@dataclass(frozen=True)
class Found:
    """Rows in the order in which they were asked for.

    Attributes:
        parts: what was read, now or before.
        part_of: int64 `[rows]`, the number of the part that a row lies in.
        rows: int64 `[rows]`, its row in there.
    """

    parts: Sequence[Part]
    part_of: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        """The bytes of these rows, as the mean of their parts has them."""
        counts = np.bincount(self.part_of, minlength=len(self.parts))
        return round(float(counts @ np.array([part.row_bytes for part in self.parts])))

    def columns(self, ids: NDArray[np.int64], names: Sequence[str], url: str) -> dict[str, Column]:
        """The fields of these rows.

        Args:
            ids: int64 `[rows]`, their sample ids, for messages.
            names: the fields.
            url: where the table lies, for messages.

        Raises:
            DataError: a row has no value, such as a list of numbers with a null in it.
        """

        def error(place: int, name: str, message: str) -> DataError:
            index = int(ids[place])
            return DataError(message, url=url, key=str(index), field=name, index=index)

        wanted = tuple(names)

        def held(part: int) -> Mapping[str, arrow.Held]:
            return self.parts[part].columns(wanted)

        return arrow.gather(names, self.part_of, self.rows, held, error=error)
