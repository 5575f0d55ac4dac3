"""Rows read from Lance, and a selection of them as columns.

A batch's columns are converted once, however often rows are taken from them; rows are gathered
batch by batch, never one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.columns import Column
from shardwise.sources.tables.arrow.columns import gather, leaf
from shardwise.sources.tables.arrow.convert import convert
from shardwise.sources.tables.arrow.views import ArrowColumn

__all__ = ["BatchRows", "RowBatch"]

# Bytes a row and column beside Arrow's own: an offset and a length, int64 each.
_ROW_BYTES = 16


class RowBatch:
    """Rows that were read together.

    Attributes:
        batch: the rows.
        num_rows: how many there are.
        row_bytes: the mean bytes of a row.
        num_bytes: the memory of all, at most.
    """

    __slots__ = ("_columns", "batch", "num_bytes", "num_rows", "row_bytes")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.num_rows: int = batch.num_rows
        self.row_bytes: float = batch.nbytes / max(1, batch.num_rows)
        self.num_bytes: int = batch.nbytes + _ROW_BYTES * batch.num_rows * batch.num_columns
        self._columns: dict[tuple[str, ...], dict[str, ArrowColumn]] = {}

    def columns(self, names: tuple[str, ...]) -> Mapping[str, ArrowColumn]:
        """The fields, converted at their first use; two threads may both do it."""
        columns = self._columns.get(names)
        if columns is None:
            columns = {name: convert(leaf(self.batch, name)) for name in names}
            self._columns[names] = columns
        return columns


@dataclass(frozen=True)
class BatchRows:
    """Rows of several batches, in the order of a read.

    Attributes:
        batches: what was read, now or before.
        batch_of: int64 `[rows]`, the number of a row's batch.
        rows: int64 `[rows]`, its row in that batch.
    """

    batches: Sequence[RowBatch]
    batch_of: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        """The bytes of these rows, by the means of their batches."""
        counts = np.bincount(self.batch_of, minlength=len(self.batches))
        return round(float(counts @ np.array([batch.row_bytes for batch in self.batches])))

    def columns(self, ids: NDArray[np.int64], names: Sequence[str], url: str) -> dict[str, Column]:
        """The fields of these rows.

        Args:
            ids: int64 `[rows]`, their sample ids, for messages.
            names: the fields.
            url: where the table lies, for messages.

        Raises:
            DataError: a row has no value, such as a list of numbers with a null in it.
        """
        fields = tuple(names)
        return gather(
            fields,
            self.batch_of,
            self.rows,
            lambda number: self.batches[number].columns(fields),
            ids=ids,
            locate=lambda row: (url, str(ids[row])),
        )
