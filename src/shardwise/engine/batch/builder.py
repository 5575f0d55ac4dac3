"""Builds a batch from a request: allocate its rows, fill them in chunks, put them together.

The chunks of one batch may be filled by several threads at once, in any order: fields of a fixed
shape are decoded straight into the rows of the batch, everything else is joined at the end. The
reference executor does all of it on demand, in the caller's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_function
from shardwise.base.collate import collate_owned, join, named
from shardwise.base.columns import Layout, make_rows
from shardwise.base.counters import Stages
from shardwise.base.errors import DataError
from shardwise.engine.batch.chunks import (
    OnError,
    PartialBatch,
    SampleLoader,
    Watching,
    columns_to_join,
    split_requests,
)
from shardwise.engine.batch.padding import Padding
from shardwise.engine.batch.ragged import Ragged, RaggedFields, join_nested, split_nested
from shardwise.engine.batch.schedule import ReadAhead, RequestReads
from shardwise.engine.request import Batch, BatchRequest, BatchRows, Concurrency
from shardwise.sources.samples import Samples


class BatchBuilder:
    """Builds batches of a dataset.

    It can be pickled: a copy in another process builds the same batches. Executors with threads in
    the loader's process may call `prepare` with each batch there, in order: it makes of the data
    what the program gets. Other batches are prepared in the caller's thread.

    Args:
        dataset: the samples.
        seed: keys the randomness of transforms, together with epoch and sample.
        collate: None for a dict of columns; else a function that gets the samples as a list of
            dicts ("__key__", "__index__", with padding "__valid__", and the fields) and returns
            the batch. `sw.pad(...)` is applied to the columns.
        as_tuple: the entries of a sample that `collate` gets, as a tuple; None for dicts.
        ragged: "list", "error", "pad" or "nested", see `RaggedFields`.
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
        padding = collate if isinstance(collate, Padding) else None
        self.collate = collate if padding is None else None
        check_function("collate", self.collate)
        self.as_tuple = as_tuple
        rule = "pad" if padding else ragged
        self.ragged = RaggedFields(rule, dataset.describe, padding, dataset.padding)
        self._whole_fields = dataset.whole_fields
        self._has_rows = True
        self.on_error = on_error
        self._loader = SampleLoader(dataset, seed=seed, on_error=on_error)
        self.prepare: Callable[[Batch], None] = _leave
        self._thread = threading.local()
        self._ahead: ReadAhead | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without what belongs to this process: its threads, and the loader's `prepare`."""
        own = ("_thread", "_ahead", "prepare")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"_thread": threading.local(), "_ahead": None, "prepare": _leave}

    @cached_property
    def layout(self) -> dict[str, Layout]:
        """Shape and dtype of the fields that are decoded straight into a batch's rows."""
        return dict(self.dataset.layout())

    def build(self, request: BatchRequest, watching: Watching | None = None) -> Batch:
        """Build one batch in this thread."""
        partial = self.begin(request)
        self.fill(partial, 0, len(request.ids), watching)
        return self.finish(partial, watching)

    def read_ahead(
        self, requests: Iterator[BatchRequest], *, cached: bool | None = None
    ) -> ReadAhead:
        """Take requests ahead, and announce their reads to storage; `cached` as in `Upcoming`."""
        self._ahead = ReadAhead(requests, self.reads(cached=cached))
        return self._ahead

    def close(self) -> None:
        """End what the newest run reads ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def reads(self, *, cached: bool | None = None) -> RequestReads:
        """Make the object that announces the reads of requests to storage."""
        return RequestReads(self.dataset, self.seed, cached=cached)

    def begin(self, request: BatchRequest) -> PartialBatch:
        """Allocate the rows of a batch."""
        num_rows = len(request.ids)
        rows = {name: make_rows(num_rows, layout) for name, layout in self.layout.items()}
        return PartialBatch(request, rows)

    def fill(
        self, partial: PartialBatch, start: int, stop: int, watching: Watching | None = None
    ) -> None:
        """Load rows [start, stop) of the batch; different rows may be filled at the same time."""
        out = {name: rows[start:stop] for name, rows in partial.rows.items()}
        began, started = time.thread_time(), time.perf_counter()
        request = partial.request
        ids = request.ids[start:stop]
        chunk = self._loader.load(ids, request.epoch, out, watching or Watching())
        chunk.stages.cpu_s = time.thread_time() - began
        chunk.span = (started, time.perf_counter(), threading.get_native_id())
        # A thread's first chunk also imports decoders and opens files.
        chunk.is_warm_up = not getattr(self._thread, "is_warm", False)
        self._thread.is_warm = True
        partial.chunks[start] = chunk

    def finish(self, partial: PartialBatch, watching: Watching | None = None) -> Batch:
        """Put the chunks together; without a row, this may load a sample."""
        if partial.request.sizes:
            parts = [self.finish(part) for part in split_requests(partial)]
            return Batch(None, num_rows=0, parts=parts)
        began = time.perf_counter()
        request = partial.request
        chunks = [partial.chunks[start] for start in sorted(partial.chunks)]
        stages, num_replaced = Stages(), 0
        for chunk in chunks:
            stages.merge(chunk.stages)
            num_replaced += chunk.num_replaced
        kept = np.concatenate([chunk.kept for chunk in chunks])
        ids = np.concatenate([chunk.ids for chunk in chunks])
        valid = request.valid
        rows_of_batch = _rows(request, ids, kept, is_plain=not num_replaced and bool(kept.all()))
        if not kept.all():
            ids, valid = ids[kept], None if valid is None else valid[kept]
        if len(ids):
            columns: dict[str, Any] = dict(_join_chunks(columns_to_join(partial), request))
            for chunk in chunks:
                chunk.columns = ()  # large rows are freed one by one while they are stacked
            for name, rows in partial.rows.items():
                columns[name] = rows if len(ids) == len(kept) else rows[kept]
            data = self._collate_columns(columns, ids, valid, fixed=partial.rows.keys())
        else:
            data = self._empty(request, watching) if self.collate is None else self.collate([])
        stages.add("collate", time.perf_counter() - began)
        return Batch(
            data,
            num_rows=len(ids),
            num_skipped=len(kept) - len(ids),
            num_replaced=num_replaced,
            rows=rows_of_batch,
            stages=stages,
            chunks=[(c.ids, c.stages.total()) for c in chunks if not c.is_warm_up],
            spans=[chunk.span for chunk in chunks],
        )

    def _empty(self, request: BatchRequest, watching: Watching | None) -> dict[str, Any]:
        """A batch without samples, of the form that a batch with samples has.

        The fields that a transform returns are known only from a sample: build a batch of one, and
        leave it out again.
        """
        ragged = self.ragged
        builder = BatchBuilder(
            self.dataset,
            seed=self.seed,
            collate=ragged.padding if ragged.ragged == "pad" else None,
            ragged=ragged.ragged,
            on_error="replace",
        )
        builder._has_rows = False
        valid = None if request.valid is None else np.zeros(1, dtype=np.bool_)
        first = np.zeros(1, dtype=np.int64)
        batch = builder.build(BatchRequest(request.epoch, request.step, first, valid), watching)
        return cast("dict[str, Any]", batch.data)

    def _collate_columns(
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
            rows = zip(*columns.values(), strict=True)
            try:
                return self.collate([dict(zip(columns, row, strict=True)) for row in rows])
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                # Those that a function for torch's tuples, or for a dataset's objects, may raise.
                error.add_note(
                    f"collate= got samples as dicts of {', '.join(map(repr, columns))}; the "
                    "loader's as_tuple= names those of which it gets tuples"
                )
                raise
        keys = list(columns.pop("__key__"))
        columns, forms = split_nested(columns, self._whole_fields)
        data = self.ragged.settle(collate_owned(columns), fixed=fixed, keys=keys, ids=ids)
        batch: dict[str, Any] = {"__key__": keys, "__index__": ids, **data}
        if valid is not None:
            batch["__valid__"] = valid
        if not self._has_rows:
            batch = {name: column[:0] for name, column in batch.items()}
        return join_nested(batch, forms) if forms else batch


def _leave(batch: Batch) -> None:
    """Leave a batch as it is: no loader is to prepare it here."""


def _rows(
    request: BatchRequest, ids: NDArray[np.int64], kept: NDArray[np.bool_], *, is_plain: bool
) -> BatchRows:
    """Classify the requested rows: kept, skipped, replaced, padding; `ids` are the loaded ones."""
    valid = request.valid
    if is_plain:
        # The loaded ids, not the request's: the account is of what is in the batch.
        none = ids[:0]
        if valid is None:
            return BatchRows(ids, none, none)
        return BatchRows(ids[valid], none, none, int(np.count_nonzero(~valid)))
    counts = np.ones(len(ids), dtype=np.bool_) if valid is None else valid
    asked = request.ids
    is_same = ids == asked
    return BatchRows(
        ids[counts & kept & is_same],
        skipped=asked[counts & ~kept],
        replaced=asked[counts & kept & ~is_same],
        num_padded=int(np.count_nonzero(~counts & kept)),
    )


def _join_chunks(
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


@dataclass(eq=False)
class InlineExecutor:
    """Builds batches one after the other; all other executors give the same bytes."""

    builder: BatchBuilder

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency("inline")

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        with closing(self.builder.read_ahead(requests)) as ahead:
            for request in ahead:
                batch = self.builder.build(request)
                ahead.finish(request)
                batch.num_ready = 0
                yield batch
            ahead.raise_error()

    def close(self) -> None:
        """There is nothing to give back."""
