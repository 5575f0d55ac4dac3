"""Which sample of one dataset each sample of another one has, by their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.dataset.column import kept_place
from shardwise.dataset.kept_arrays import kept_or_made
from shardwise.sources.per_process import MadeOnce


@dataclass(frozen=True, eq=False)
class _Rows:
    rows: NDArray[Any]


class Matches:
    """The matches of two datasets: made once, kept in a file, and mapped by each process.

    A pickle has where they are kept, and what makes them again where that file is missing; of
    datasets of which nothing is kept it has the matches.

    Args:
        left: the samples that look for a match, each once.
        right: those that are looked for, each once.
        by: the columns of their keys.
    """

    def __init__(self, left: Dataset, right: Dataset, by: tuple[str, str]) -> None:
        self._sides = ((left, by[0], "left"), (right, by[1], "right"))
        origins = [side.column_origin(name) for side, name, _ in self._sides]
        origin = "\n".join(["join 1", *origins])
        places = [kept_place(side, "join", origin) for side, *_ in self._sides]
        self._place = None if None in places else places[0]
        self._made: MadeOnce[_Rows] = MadeOnce()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({} if self._place is None else {"_made": MadeOnce()})

    @property
    def rows(self) -> NDArray[Any]:
        """By the left source's ids, the right source's; -1 where there is none."""
        load = lambda: kept_or_made(self._place, _Rows, self._make)  # noqa: E731
        return self._made.get(load).rows

    def _make(self) -> _Rows:
        keys, wanted = (side.column(name, progress=False) for side, name, _ in self._sides[::-1])
        _check_kinds(wanted, keys)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        self._refuse_doubled(1, order[1:][keys[1:] == keys[:-1]])
        places = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
        found = keys[places] == wanted if len(keys) else np.zeros(len(wanted), np.bool_)
        uses = np.bincount(places[found], minlength=len(keys))
        self._refuse_doubled(0, np.flatnonzero(found)[uses[places[found]] > 1])
        left_ids, right_ids = (_source_ids(side) for side, *_ in self._sides)
        num_samples = self._sides[0][0].source.manifest.num_samples
        most = max(right_ids, default=0)
        rows = np.full(num_samples, -1, np.int32 if most < 2**31 else np.int64)
        rows[left_ids[found]] = right_ids[order[places[found]]]
        return _Rows(rows)

    def _refuse_doubled(self, number: int, indices: NDArray[np.int64]) -> None:
        if len(indices):
            dataset, by, name = self._sides[number]
            index = int(indices[0])
            key = dataset.column(by, progress=False)[index]
            raise DataError(
                f"join(by={by!r}): {key.item()!r} is the key of another sample of the {name} "
                f"dataset, too ({len(indices)} samples are doubled): leave them out with subset(), "
                "or join by a field that tells them apart",
                url=dataset.url_of(index),
                index=index,
            )


def _source_ids(dataset: Dataset) -> NDArray[np.int64]:
    indices = dataset.transforms.indices
    return np.arange(len(dataset)) if indices is None else indices


def _check_kinds(left: NDArray[Any], right: NDArray[Any]) -> None:
    kinds = ["i" if keys.dtype.kind in "iu" else keys.dtype.kind for keys in (left, right)]
    # A column without a row has no dtype of its own.
    if len(left) and len(right) and (kinds[0] != kinds[1] or kinds[0] not in "iU"):
        raise TypeError(
            f"join(): the keys are {left.dtype} on the left and {right.dtype} on the right: take "
            "texts, or whole numbers, for both"
        )
