"""Buckets: an order whose batches have samples of about one length, and of one group.

1. The positions of another sampler are walked through in windows; those of a group of samples that
   must not mix with others have separate windows.
2. A window is sorted by length and cut into batches: of a fixed number of rows, or of as many rows
   as a budget has room for. A default window of very large global batches is cut into strands. A
   strand is sorted by itself and gives some rows of every batch: those of a few ranks, so that a
   rank sorts as much at any world size.
3. Its batches are permuted by (seed, epoch, window), and groups are interleaved evenly.

So it is a pure function of (epoch, position) like every other order (I3). The lengths are in memory
or mapped; a budget or groups add one pass over them an epoch (about 0.3 us a sample).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.buckets.columns import BucketColumns
from shardwise.extensions.buckets.windows import (
    Layout,
    Window,
    arranged,
    batch_order,
    blurred,
    budget_sizes,
)
from shardwise.plan.permute import LastValues, as_positions, mix, mix_array
from shardwise.plan.protocol import (
    BatchEnds,
    Sampler,
    epoch_parts,
    for_global_batch,
    global_batch_of,
    sources_of,
)

Ints = NDArray[np.int64]

# Neighbours in length that stay together under a budget: ranks of up to as many have alike shapes
# at a step. More would give a few ranks many such steps one after the other.
_UNIT = 8
_BLOCK = 1 << 20
# A default window has 64 global batches: at 8 ranks of 32 that wastes 3 % of the padded cost.
DEFAULT_WINDOW, _DEFAULT_BATCHES = 16_384, 64
# Fewer global batches than that in a window give little: 4 waste 1.4 times the cost of the samples.
_FEW_BATCHES = 16
# Rows of a global batch that one strand gives: as many as one default window is cut into.
_STRAND_ROWS = DEFAULT_WINDOW // _DEFAULT_BATCHES
# A global batch beyond any machine's memory has one strand: strands take memory themselves.
_MOST_ROWS = 2**28
# Strands that are kept, of 128 KiB each, for callers that request many ranks.
_MOST_STRANDS = 64


class BucketSampler:
    """Batches of neighbours in length, in the windows of another order.

    Args:
        sampler: the order to walk through; its ids must lie in the columns.
        columns: the lengths, and the groups that must not mix.
        batch_rows: rows of a global batch; None with a budget, whose batches are a rank's.
        budget: the largest rows x longest of a batch; None with `batch_rows`.
        window: positions that are sorted by length together. None for 64 global batches, at least
            16,384; each 256 rows of a global batch then have their own strand.
        seed: permutes the batches of a window; None keeps them by length, longest first.

    Safe in threads; pickles with the columns.
    """

    def __init__(
        self,
        sampler: Sampler,
        columns: BucketColumns,
        *,
        batch_rows: int | None,
        budget: float | None,
        window: int | None,
        seed: int | None,
    ) -> None:
        self._inner = sampler
        self._columns = columns
        self._batch_rows = batch_rows
        self._budget = budget
        self._asked_window = window
        rows = batch_rows or 0
        self._window = window or max(DEFAULT_WINDOW, _DEFAULT_BATCHES * rows)
        num_strands = 1 if window or rows > _MOST_ROWS else max(1, rows // _STRAND_ROWS)
        # int64 `[strands + 1]`, the rows of a global batch at which each strand starts and ends.
        self._edges: Ints = np.arange(num_strands + 1) * rows // num_strands
        self._seed = seed
        self.seed = 0 if seed is None else seed
        self.num_samples = sampler.num_samples
        self._layouts: LastValues[int, Layout] = LastValues()
        # A window for each group that is being read, and two for borders between them.
        num_kept = columns.num_groups + 1 + min(num_strands, _MOST_STRANDS)
        self._rows: LastValues[tuple[int, int, int], Ints] = LastValues(num_kept)

    def for_global_batch(self, size: int) -> BucketSampler:
        """This order for global batches of this size; a budget's order is the same for all."""
        inner = for_global_batch(self._inner, size)
        rows = None if self._batch_rows is None else size
        if inner is self._inner and rows == self._batch_rows:
            return self
        return BucketSampler(
            inner,
            self._columns,
            batch_rows=rows,
            budget=self._budget,
            window=self._asked_window,
            seed=self._seed,
        )

    def in_order_of(self, spec: Mapping[str, Any]) -> BucketSampler:
        """This order as a state has it: once the default window was the same for all batches."""
        is_old = spec.get("window") == DEFAULT_WINDOW and "strands" not in spec
        if self._asked_window or not is_old or (global_batch_of(spec) or 0) <= _STRAND_ROWS:
            return self
        return BucketSampler(
            self._inner,
            self._columns,
            batch_rows=self._batch_rows,
            budget=self._budget,
            window=DEFAULT_WINDOW,
            seed=self._seed,
        )

    def advice(self, *, is_dropping: bool) -> list[str]:
        """Warn of a window of too few global batches, and of groups that every epoch drops."""
        rows = self._batch_rows
        if rows is None:
            return []
        found = []
        if rows * _FEW_BATCHES > self._window < self.num_samples:
            found.append(
                f"sw.buckets(window={self._window}) sorts {self._window // rows} global batches of "
                f"{rows} samples together, so that lengths of a batch differ nearly as without "
                "buckets: leave window= out for 64 of them"
            )
        counts = self._columns.group_counts
        small = np.flatnonzero(counts < rows)
        if is_dropping and len(counts) > 1 and len(small):
            least = int(small[np.argmin(counts[small])])
            found.append(
                f"{len(small)} groups of shape= are smaller than a global batch, so that "
                "remainder='drop' leaves them out of every epoch; the smallest is "
                f"{self._columns.group_name(least)} with {counts[least]} samples: pass "
                "remainder='pad' or 'uneven' to have them, or make the batch smaller"
            )
        return found

    def batch_ends(self, epoch: int) -> BatchEnds | None:
        """The ends of an epoch's batches; None if they all have `batch_rows` rows."""
        if self._budget is None and self._columns.num_groups == 1:
            return None
        return BatchEnds(self._layouts.get(epoch, self._layout).ends, self._batch_rows)

    def epoch_ids(self, epoch: int) -> list[range | Ints] | None:
        return epoch_parts(self._inner, epoch)

    def sources(self, epoch: int, position: int) -> dict[str, dict[str, float]] | None:
        """The inner order's counts by dataset, give or take a window; None without a mixture."""
        return sources_of(self._inner, epoch, position)

    def indices(self, epoch: int, positions: Ints) -> Ints:
        asked = as_positions(positions, self.num_samples)
        layout = self._layouts.get(epoch, self._layout)
        batch = np.searchsorted(layout.ends, asked, side="right")
        rows = asked + layout.shifts[batch]
        window_of = layout.window_of[batch]
        ids = np.empty(len(asked), dtype=np.int64)
        for number in np.unique(window_of).tolist():
            here = np.flatnonzero(window_of == number)
            ids[here] = self._window_ids(epoch, number, rows[here])
        return ids

    def spec(self) -> dict[str, Any]:
        """Everything that the order depends on, as JSON; digests stand for lengths and groups."""
        spec: dict[str, Any] = {
            "sampler": "buckets",
            **self._columns.spec,
            "window": self._window,
            "seed": self._seed,
        }
        if self._batch_rows is None:
            spec["budget"] = self._budget
        else:
            spec["global_batch"] = self._batch_rows
        if len(self._edges) > 2:
            spec["strands"] = len(self._edges) - 1
        return {**spec, "inner": self._inner.spec()}

    def _window_ids(self, epoch: int, number: int, rows: Ints) -> Ints:
        """The ids of some rows of a window, counted batch after batch."""
        window = self._layouts.get(epoch, self._layout).windows[number]
        # A window of leftovers has one smaller batch, and no strands.
        if len(self._edges) == 2 or window.sizes[0] != self._batch_rows:
            return self._rows.get((epoch, number, -1), self._arrange_window)[rows]
        ids = np.empty_like(rows)
        batch, row = np.divmod(rows, self._batch_rows or 1)
        strand_of = np.searchsorted(self._edges, row, side="right") - 1
        for strand in np.unique(strand_of).tolist():
            here = np.flatnonzero(strand_of == strand)
            begin, stop = self._edges[strand : strand + 2]
            own = self._rows.get((epoch, number, strand), self._arrange_window)
            ids[here] = own[batch[here] * (stop - begin) + row[here] - begin]
        return ids

    def _arrange_window(self, epoch_number_strand: tuple[int, int, int]) -> Ints:
        """The ids of a window, or of a strand of it, batch after batch; no strand is -1."""
        epoch, number, strand = epoch_number_strand
        layout = self._layouts.get(epoch, self._layout)
        window = layout.windows[number]
        if strand >= 0:
            begin, stop = (int(edge) for edge in self._edges[strand : strand + 2])
            count = len(window.sizes)
            window = replace(
                window,
                begin=window.begin + begin * count,
                stop=window.begin + stop * count,
                sizes=np.full(count, stop - begin),
                is_alone=False,  # the positions of a strand are other samples in each epoch
            )
        ids = self._ids(epoch, layout.places, window.begin, window.stop)
        scores = self._scores(epoch, number, ids, is_alone=window.is_alone)
        return ids[arranged(scores, window.sizes, window.order)]

    def _scores(self, epoch: int, number: int, ids: Ints, *, is_alone: bool) -> NDArray[np.float64]:
        """The keys that the samples of a window are sorted by."""
        lengths = self._columns.lengths[ids].astype(np.float64)
        if not is_alone or self._seed is None:
            return lengths
        rows = self._batch_rows
        share = lengths / (self._budget or 1.0) if rows is None else 1.0 / rows
        return blurred(lengths, mix(self._seed, epoch, number, 1), share)

    def _ids(self, epoch: int, places: Ints | None, begin: int, stop: int) -> Ints:
        positions = np.arange(begin, stop) if places is None else places[begin:stop]
        return self._inner.indices(epoch, positions)

    def _layout(self, epoch: int) -> Layout:
        places, bounds = self._group_positions(epoch)
        windows: list[Window] = []
        times: list[NDArray[np.float64]] = []
        for group, (begin, stop) in enumerate(pairwise(bounds)):
            # The last samples in order are left over, not the longest or shortest ones.
            end = stop - (stop - begin) % (self._batch_rows or 1)
            cut = self._cut_group(epoch, places, range(begin, end), len(windows))
            times.append(self._times(epoch, group, [len(window.sizes) for window in cut]))
            windows += cut
            if end < stop:
                sizes, order = np.array([stop - end]), np.array([0])
                windows.append(Window(end, stop, sizes, order, is_alone=False))
                times.append(np.array([np.inf]))
        ordered = [window.sizes[window.order] for window in windows]
        size = _join_arrays(ordered)
        window_of = np.repeat(np.arange(len(windows)), [len(each) for each in ordered])
        # The row of its window at which each batch starts.
        rows = _join_arrays([np.cumsum(each) - each for each in ordered])
        order = np.argsort(_join_arrays(times), kind="stable")
        ends = np.cumsum(size[order])
        return Layout(windows, places, ends, window_of[order], rows[order] - (ends - size[order]))

    def _group_positions(self, epoch: int) -> tuple[Ints | None, list[int]]:
        """The positions of the epoch by group, and where each group ends."""
        groups = self._columns.groups
        if groups is None:
            return None, [0, self.num_samples]
        codes = np.empty(self.num_samples, dtype=groups.dtype)
        for begin in range(0, self.num_samples, _BLOCK):
            stop = min(begin + _BLOCK, self.num_samples)
            codes[begin:stop] = groups[self._inner.indices(epoch, np.arange(begin, stop))]
        counts = np.bincount(codes, minlength=self._columns.num_groups)
        return np.argsort(codes, kind="stable"), [0, *np.cumsum(counts).tolist()]

    def _cut_group(
        self, epoch: int, places: Ints | None, group: range, first_number: int
    ) -> list[Window]:
        """Cut one group's places into windows, and these into batches."""
        rows, size = self._batch_rows, self._window
        if rows is not None:
            size = max(1, size // rows) * rows
        windows: list[Window] = []
        for begin in group[::size]:
            stop = min(begin + size, group.stop)
            is_alone = range(begin, stop) == group
            number = first_number + len(windows)
            if rows is None:
                ids = self._ids(epoch, places, begin, stop)
                scores = self._scores(epoch, number, ids, is_alone=is_alone)
                if is_alone:
                    order = np.argsort(-scores, kind="stable")
                    lengths = self._columns.lengths[ids[order]].astype(np.float64)
                else:  # the lengths themselves, in a fifth of the time
                    lengths = np.sort(scores)[::-1]
                sizes = np.array(budget_sizes(lengths, self._budget or 0.0))
            else:
                sizes = np.full((stop - begin) // rows, rows)
            key = None if self._seed is None else mix(self._seed, epoch, number)
            order = batch_order(len(sizes), key, self._unit)
            windows.append(Window(begin, stop, sizes, order, is_alone))
        return windows

    def _times(self, epoch: int, group: int, counts: list[int]) -> NDArray[np.float64]:
        """When each batch of a group's windows comes in the epoch, in [0, 1).

        Unit i of n comes somewhere between i / n and (i + 1) / n: each group is spread evenly over
        the epoch, and its units keep their order.
        """
        offsets = np.cumsum([0, *(-(-count // self._unit) for count in counts)])
        units = _join_arrays([np.arange(count) // self._unit for count in counts])
        units += np.repeat(offsets[:-1], counts)
        fraction: NDArray[np.float64] | float = 0.5
        if self._seed is not None:
            words = mix_array(mix(self._seed, epoch, group, -1), units)
            fraction = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        times: NDArray[np.float64] = (units + fraction) / max(1, offsets[-1])
        return times

    @property
    def _unit(self) -> int:
        """Batches that stay together: of a rank under a budget, else a global batch is one."""
        return _UNIT if self._batch_rows is None else 1

    def __repr__(self) -> str:
        kind = f"budget={self._budget:g}" if self._budget else f"global batch {self._batch_rows}"
        return f"BucketSampler({self._inner!r}, {kind}, window={self._window})"


def _join_arrays(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([*parts, np.empty(0, np.int64)])
