"""From work to a batch: allocate, fill in pieces, put together.

The pieces of one batch may be filled by several threads at once, in any order: fields of a fixed
shape are decoded straight into the rows of the batch, everything else is joined at the end. What
to do about a damaged sample is decided here, sample by sample, so that every executor decides
alike (I5) and nothing is lost without a count (I6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwise.collate import collate as collate_columns
from shardwise.collate import join, named
from shardwise.engine.batch.partial_batch import Draft, Piece, loose_columns, parts_of
from shardwise.engine.batch.ragged import Ragged, RaggedFields
from shardwise.engine.request import Batch, Work
from shardwise.engine.stats.stages import Stages
from shardwise.errors import DataError
from shardwise.plan.permute import mix
from shardwise.samples import Samples

__all__ = ["ON_ERROR", "BatchMaker", "OnError"]

OnError = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[OnError, ...] = get_args(OnError)
# Substitutes that are tried for one damaged sample before its error is raised all the same.
_MAX_SUBSTITUTES = 32


class BatchMaker:
    """Makes batches of a dataset.

    Args:
        dataset: what loads samples.
        seed: keys the randomness of transforms, together with epoch and sample.
        collate: None for a dict of columns; else a function that gets the samples as a list of
            dicts ("__key__", "__index__", with padding "__valid__", and the fields) and returns
            the batch.
        as_tuple: these of a sample's entries, as a tuple, are what `collate` gets; None for dicts.
        ragged: "list", "error" or "pad", see `RaggedFields`.
        on_error: "raise"; "skip" leaves a damaged sample's row out; "replace" puts another sample
            there, the same one in every run. Only `DataError` is a damaged sample.
    """

    def __init__(
        self,
        dataset: Samples,
        *,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        as_tuple: tuple[str, ...] | None = None,
        ragged: Ragged = "list",
        on_error: OnError = "raise",
    ) -> None:
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error={on_error!r}: use one of {', '.join(map(repr, ON_ERROR))}")
        self.dataset = dataset
        self.seed = seed
        self.collate = collate
        self.as_tuple = as_tuple
        self.ragged = RaggedFields(ragged, dataset.describe)
        self.on_error = on_error

    def make(self, work: Work) -> Batch:
        """Make one batch in this thread."""
        draft = self.begin(work)
        self.fill(draft, 0, len(work.ids))
        return self.finish(draft)

    def begin(self, work: Work) -> Draft:
        """Allocate the rows of a batch."""
        num_rows = len(work.ids)
        rows = {
            name: np.empty((num_rows, *shape), dtype=dtype)
            for name, (shape, dtype) in self.dataset.layout().items()
        }
        return Draft(work, rows)

    def fill(self, draft: Draft, start: int, stop: int) -> None:
        """Load rows [start, stop) of the batch; different rows may be filled at the same time."""
        out = {name: rows[start:stop] for name, rows in draft.rows.items()}
        ids = draft.work.ids[start:stop]
        stages = Stages()
        began = time.thread_time()
        failed: DataError | None = None
        try:
            columns = self._load(ids, draft.work.epoch, out, stages)
            piece = Piece(ids, [columns], np.ones(len(ids), dtype=np.bool_), 0, stages)
        except DataError as error:
            failed = error
        # Not in the `except` clause: an error of one row is not a consequence of this one.
        if failed is not None and self.on_error == "raise":
            if "read" not in stages.seconds:
                self._raise_first(draft.work, ids, out)
            raise failed
        if failed is not None:
            piece = self._fill_singly(draft.work, ids, out, stages)
        stages.cpu_s = time.thread_time() - began
        draft.pieces[start] = piece

    def finish(self, draft: Draft) -> Batch:
        """Put the pieces together."""
        if draft.work.sizes:
            return Batch(None, num_rows=0, parts=[self.finish(part) for part in parts_of(draft)])
        began = time.perf_counter()
        work = draft.work
        pieces = [draft.pieces[start] for start in sorted(draft.pieces)]
        stages = Stages()
        for piece in pieces:
            stages.merge(piece.stages)
        kept = np.concatenate([piece.kept for piece in pieces])
        ids = np.concatenate([piece.ids for piece in pieces])
        valid = work.valid
        if not kept.all():
            ids, valid = ids[kept], None if valid is None else valid[kept]
        if len(ids):
            columns: dict[str, Any] = dict(self._joined(loose_columns(draft), work))
            for name, rows in draft.rows.items():
                columns[name] = rows if len(ids) == len(kept) else rows[kept]
            data = self._collated(columns, ids, valid, fixed=draft.rows.keys())
        else:
            data = self._empty(work) if self.collate is None else self.collate([])
        stages.add("collate", time.perf_counter() - began)
        return Batch(
            data,
            num_rows=len(ids),
            num_skipped=len(kept) - len(ids),
            num_replaced=sum(piece.num_replaced for piece in pieces),
            stages=stages,
            pieces=[(piece.ids, piece.stages.total()) for piece in pieces],
        )

    def _load(
        self, ids: NDArray[np.int64], epoch: int, out: Mapping[str, NDArray[Any]], stages: Stages
    ) -> Mapping[str, Sequence[Any]]:
        return self.dataset.load(ids, epoch=epoch, seed=self.seed, out=out, stats=stages)

    def _raise_first(
        self, work: Work, ids: NDArray[np.int64], out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Of rows that could not be read together, raise the error of the first damaged one.

        It is the same one however the batch was cut into pieces. Where all rows could be read, it
        was raised already, and functions of the user's have run.
        """
        for row in range(len(ids)):
            place = {name: rows[row : row + 1] for name, rows in out.items()}
            self._load(ids[row : row + 1], work.epoch, place, Stages())

    def _fill_singly(
        self,
        work: Work,
        ids: NDArray[np.int64],
        out: Mapping[str, NDArray[Any]],
        stages: Stages,
    ) -> Piece:
        """Load rows one by one, to keep the good ones of a piece in which one is damaged."""
        ids = ids.copy()
        kept = np.ones(len(ids), dtype=np.bool_)
        columns = []
        num_replaced = 0
        for row in range(len(ids)):
            place = {name: rows[row : row + 1] for name, rows in out.items()}
            try:
                columns.append(self._load(ids[row : row + 1], work.epoch, place, stages))
            except DataError as error:
                if self.on_error == "skip":
                    kept[row] = False
                    continue
                ids[row], substitute = self._substitute(work, int(ids[row]), place, stages, error)
                columns.append(substitute)
                num_replaced += 1
        return Piece(ids, columns, kept, num_replaced, stages)

    def _substitute(
        self,
        work: Work,
        index: int,
        place: Mapping[str, NDArray[Any]],
        stages: Stages,
        error: DataError,
    ) -> tuple[int, Mapping[str, Sequence[Any]]]:
        """Load another sample for a damaged one: the same one in every run of this epoch."""
        for attempt in range(_MAX_SUBSTITUTES):
            other = mix(self.seed, work.epoch, index, attempt) % len(self.dataset)
            try:
                ids = np.array([other], dtype=np.int64)
                return other, self._load(ids, work.epoch, place, stages)
            except DataError as again:
                last = again
        raise DataError(
            f"sample {index} is damaged, and so are {_MAX_SUBSTITUTES} substitutes for it",
            url=last.url,
            key=last.key,
            field=last.field,
            offset=last.offset,
            index=index,
        ) from error

    def _empty(self, work: Work) -> dict[str, Any]:
        """A batch without samples, of the form that a batch with samples has.

        What a transform returns is known only from a sample: one is made, and left out again.
        """
        ragged = self.ragged.ragged
        one = BatchMaker(self.dataset, seed=self.seed, ragged=ragged, on_error="replace")
        valid = None if work.valid is None else np.zeros(1, dtype=np.bool_)
        batch = one.make(Work(work.epoch, work.step, np.zeros(1, dtype=np.int64), valid))
        return {name: column[:0] for name, column in batch.data.items()}

    def _joined(
        self, loose: Sequence[Mapping[str, Sequence[Any]]], work: Work
    ) -> Mapping[str, Sequence[Any]]:
        """Join the columns of pieces, which must be the same ones."""
        for columns in loose[1:]:
            if columns.keys() != loose[0].keys():
                odd = sorted(columns.keys() ^ loose[0].keys())
                raise DataError(
                    f"the samples of step {work.step} do not all have the fields {odd}: select "
                    "fields that every sample has, or let the transform return the same ones",
                    key=str(columns["__key__"][0]),
                    field=str(odd[0]),
                )
        return join(loose)

    def _collated(
        self,
        columns: dict[str, Any],
        ids: NDArray[np.int64],
        valid: NDArray[np.bool_] | None,
        *,
        fixed: Collection[str],
    ) -> Any:
        if self.collate is not None:
            extra: dict[str, Sequence[Any]] = {"__index__": ids.tolist()}
            if valid is not None:
                extra["__valid__"] = valid.tolist()
            columns = {**columns, **extra}
            if self.as_tuple is not None:
                chosen = [columns[name] for name in named(columns, self.as_tuple)]
                return self.collate(list(zip(*chosen, strict=True)))
            return self.collate(
                [
                    dict(zip(columns, row, strict=True))
                    for row in zip(*columns.values(), strict=True)
                ]
            )
        keys = list(columns.pop("__key__"))
        data = self.ragged.settle(collate_columns(columns), fixed=fixed, keys=keys, ids=ids)
        batch: dict[str, Any] = {"__key__": keys, "__index__": ids, **data}
        if valid is not None:
            batch["__valid__"] = valid
        return batch
