"""From a request to a batch: allocate its rows, fill them in chunks, put them together.

The chunks of one batch may be filled by several threads at once, in any order: fields of a fixed
shape are decoded straight into the rows of the batch, everything else is joined at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.collate import collate as collate_columns
from shardwise.collate import join, named
from shardwise.columns import Layout
from shardwise.engine.batch.bad_samples import OnError, SampleLoader
from shardwise.engine.batch.partial_batch import PartialBatch, columns_to_join, split_requests
from shardwise.engine.batch.ragged import Ragged, RaggedFields
from shardwise.engine.request import Batch, BatchRequest
from shardwise.engine.stats.stages import Stages
from shardwise.errors import DataError
from shardwise.samples import Samples

__all__ = ["BatchBuilder"]


class BatchBuilder:
    """Builds batches of a dataset.

    Args:
        dataset: loads samples.
        seed: keys the randomness of transforms, together with epoch and sample.
        collate: None for a dict of columns; else a function that gets the samples as a list of
            dicts ("__key__", "__index__", with padding "__valid__", and the fields) and returns
            the batch.
        as_tuple: the entries of a sample that `collate` gets, as a tuple; None for dicts.
        ragged: "list", "error" or "pad", see `RaggedFields`.
        on_error: "raise", "skip" or "replace", see `SampleLoader`.
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
        self.dataset = dataset
        self.seed = seed
        self.collate = collate
        self.as_tuple = as_tuple
        self.ragged = RaggedFields(ragged, dataset.describe)
        self._loader = SampleLoader(dataset, seed=seed, on_error=on_error)

    @cached_property
    def layout(self) -> dict[str, Layout]:
        """Shape and dtype of the fields that are decoded straight into a batch's rows."""
        return dict(self.dataset.layout())

    def build(self, request: BatchRequest) -> Batch:
        """Build one batch in this thread."""
        partial = self.begin(request)
        self.fill(partial, 0, len(request.ids))
        return self.finish(partial)

    def begin(self, request: BatchRequest) -> PartialBatch:
        """Allocate the rows of a batch."""
        num_rows = len(request.ids)
        rows = {
            name: np.empty((num_rows, *shape), dtype=dtype)
            for name, (shape, dtype) in self.layout.items()
        }
        return PartialBatch(request, rows)

    def fill(self, partial: PartialBatch, start: int, stop: int) -> None:
        """Load rows [start, stop) of the batch; different rows may be filled at the same time."""
        out = {name: rows[start:stop] for name, rows in partial.rows.items()}
        stages = Stages()
        began = time.thread_time()
        request = partial.request
        chunk = self._loader.load(request.ids[start:stop], request.epoch, out, stages)
        stages.cpu_s = time.thread_time() - began
        partial.chunks[start] = chunk

    def finish(self, partial: PartialBatch) -> Batch:
        """Put the chunks together."""
        if partial.request.sizes:
            parts = [self.finish(part) for part in split_requests(partial)]
            return Batch(None, num_rows=0, parts=parts)
        began = time.perf_counter()
        request = partial.request
        chunks = [partial.chunks[start] for start in sorted(partial.chunks)]
        stages = Stages()
        for chunk in chunks:
            stages.merge(chunk.stages)
        kept = np.concatenate([chunk.kept for chunk in chunks])
        ids = np.concatenate([chunk.ids for chunk in chunks])
        valid = request.valid
        if not kept.all():
            ids, valid = ids[kept], None if valid is None else valid[kept]
        if len(ids):
            columns: dict[str, Any] = dict(_joined(columns_to_join(partial), request))
            for name, rows in partial.rows.items():
                columns[name] = rows if len(ids) == len(kept) else rows[kept]
            data = self._collated(columns, ids, valid, fixed=partial.rows.keys())
        else:
            data = self._empty(request) if self.collate is None else self.collate([])
        stages.add("collate", time.perf_counter() - began)
        return Batch(
            data,
            num_rows=len(ids),
            num_skipped=len(kept) - len(ids),
            num_replaced=sum(chunk.num_replaced for chunk in chunks),
            stages=stages,
            chunks=[(chunk.ids, chunk.stages.total()) for chunk in chunks],
        )

    def _empty(self, request: BatchRequest) -> dict[str, Any]:
        """A batch without samples, of the form that a batch with samples has.

        The fields that a transform returns are known only from a sample: build a batch of one, and
        leave it out again.
        """
        ragged = self.ragged.ragged
        builder = BatchBuilder(self.dataset, seed=self.seed, ragged=ragged, on_error="replace")
        valid = None if request.valid is None else np.zeros(1, dtype=np.bool_)
        first = np.zeros(1, dtype=np.int64)
        batch = builder.build(BatchRequest(request.epoch, request.step, first, valid))
        return {name: column[:0] for name, column in batch.data.items()}

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


def _joined(
    chunks: Sequence[Mapping[str, Sequence[Any]]], request: BatchRequest
) -> Mapping[str, Sequence[Any]]:
    """Join the columns of chunks, which must have the same fields."""
    for columns in chunks[1:]:
        if columns.keys() != chunks[0].keys():
            odd = sorted(columns.keys() ^ chunks[0].keys())
            raise DataError(
                f"the samples of step {request.step} do not all have the fields {odd}: select "
                "fields that every sample has, or let the transform return the same ones",
                key=str(columns["__key__"][0]),
                field=str(odd[0]),
            )
    return join(chunks)
