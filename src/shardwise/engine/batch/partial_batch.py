"""A batch in the making: pieces that were loaded, and the memory that they were put into.

Imports numpy and the engine's words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.processes.shared_columns import Placed
from shardwise.engine.request import Work
from shardwise.engine.stats.stages import Stages

__all__ = ["Draft", "Piece", "loose_columns", "parts_of"]


@dataclass(slots=True)
class Piece:
    """Rows [start, stop) of a batch, loaded; `kept` are the rows that are left of them."""

    ids: NDArray[np.int64]
    columns: Sequence[Mapping[str, Sequence[Any]]]
    kept: NDArray[np.bool_]
    num_replaced: int
    stages: Stages

    def without(self, names: Collection[str]) -> Piece:
        """This piece without the columns of some fields: those that lie in the batch already."""
        columns = [
            {name: column for name, column in columns.items() if name not in names}
            for columns in self.columns
        ]
        return Piece(self.ids, columns, self.kept, self.num_replaced, self.stages)

    def is_placed(self, name: str) -> bool:
        """Whether the rows of a column lie in the batch's memory."""
        return isinstance(self.columns[0].get(name), Placed)

    def between(self, start: int, stop: int) -> Piece:
        """Some rows of a piece that was loaded at once, as a piece of their own."""
        [columns] = self.columns
        return Piece(
            self.ids[start:stop],
            [{name: _between(column, start, stop) for name, column in columns.items()}],
            self.kept[start:stop],
            0,
            self.stages.share(start, stop, len(self.ids)),
        )


@dataclass(slots=True)
class Draft:
    """A batch in the making: rows that are filled in place, and pieces by their first row.

    `spare` is memory for columns that may be in place, too, where the pieces say `Placed`.
    """

    work: Work
    rows: dict[str, NDArray[Any]]
    pieces: dict[int, Piece] = field(default_factory=dict)
    spare: dict[str, NDArray[Any]] = field(default_factory=dict)


def _between(column: Any, start: int, stop: int) -> Any:
    return Placed(stop - start) if isinstance(column, Placed) else column[start:stop]


def loose_columns(draft: Draft) -> list[Mapping[str, Any]]:
    """The columns of all pieces that are still to be joined: those that no decoder put in place.

    A column that every piece placed is given whole by the first piece and without rows by the
    others, so that joining copies nothing.
    """
    pieces = sorted(draft.pieces.items())
    loose: list[Mapping[str, Any]] = []
    for start, piece in pieces:
        for columns in piece.without(draft.rows).columns:
            own: dict[str, Any] = dict(columns)
            for name, column in columns.items():
                if isinstance(column, Placed):
                    rows, stop = draft.spare[name], start + len(piece.ids)
                    if all(other.is_placed(name) for _, other in pieces):
                        own[name] = rows[:0] if loose else rows
                    else:
                        own[name] = rows[start:stop]
            loose.append(own)
    return loose


def parts_of(draft: Draft) -> Iterator[Draft]:
    """The drafts of the batches that a work of several is made of."""
    work, begin = draft.work, 0
    for number, size in enumerate(work.sizes):
        end = begin + size
        own = Work(
            work.epoch,
            work.step + number,
            work.ids[begin:end],
            None if work.valid is None else work.valid[begin:end],
        )
        rows = {name: array[begin:end] for name, array in draft.rows.items()}
        pieces = {}
        if not size:
            pieces[0] = Piece(own.ids, [], np.ones(0, dtype=np.bool_), 0, Stages())
        for start, piece in draft.pieces.items():
            first, last = max(begin, start), min(end, start + len(piece.ids))
            if first < last:
                pieces[first - begin] = piece.between(first - start, last - start)
        spare = {name: array[begin:end] for name, array in draft.spare.items()}
        yield Draft(own, rows, pieces, spare)
        begin = end
