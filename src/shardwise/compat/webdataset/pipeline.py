"""Pipelines: a source and stages behind it, with epochs, seeds and a state.

A pass through the pipeline depends on (seed, number of the pass, rank, worker) alone, however its
worker was started. Epoch e of a plain pipeline is pass e; `with_epoch` cuts the endless line of
passes into epochs of a given size, each going on where the last one stopped.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, Self

from shardwise.compat.webdataset.clock import Clock
from shardwise.compat.webdataset.division import doubt, is_steered
from shardwise.compat.webdataset.place import TOLD, Place, find_place, find_ranks, in_worker
from shardwise.compat.webdataset.positions import (
    PASSES_APART,
    VERSION,
    At,
    Live,
    Slots,
    Start,
    check_state,
    drawn,
    fingerprint,
    redraw,
)
from shardwise.compat.webdataset.run import CURRENT, as_seed
from shardwise.compat.webdataset.shardlists import ResampledShards
from shardwise.compat.webdataset.stages import StageList
from shardwise.compat.webdataset.utils import PipelineStage
from shardwise.errors import StateError
from shardwise.ranks import Ranks

_ENDLESS = sys.maxsize
# New workers read so many samples of a resampled pass again, at most, to go on behind them.
_MAX_AGAIN = 20_000


class DataPipeline(StageList):
    """A source, and stages that each take an iterator and return one."""

    # Whether the workers of a loader share an epoch's size, or each yields all of it. Programs that
    # build their own pipelines divide by the number of workers themselves.
    shares_epoch = False
    # Whether the program itself says how shards are divided among the ranks.
    is_split_asked = True

    def __init__(self, *args: Any, seed: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        super().__init__(*args, seed=seed)
        self.repetitions = 1
        self.nsamples = -1
        self._clock = Clock()
        self._slots: Slots | None = None
        self._told: Ranks | None = None
        self._resume: dict[str, Any] | None = None
        self._at: At | None = None
        self._live: Live | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Found here, in the process that has the process group, for the one that has not.
        return self.__dict__ | {"_told": find_ranks(told=self._told), "_at": None, "_live": None}

    def close(self) -> None:
        """Close the stages that can be closed; the pipeline can't be used any more."""
        self._live = None
        for stage in self.pipeline:
            if hasattr(stage, "close"):
                stage.close()
        self.pipeline = []

    def iterator1(self) -> Iterator[Any]:
        """One pass."""
        return self._pass(At(0, self._clock.next_epoch), find_place(told=self._told))

    def iterator(self) -> Iterator[Any]:
        """The passes of one epoch, without a limit to the number of samples."""
        return self._unlimited(At(self._begin()), find_place(told=self._told), None)

    def __iter__(self) -> Iterator[Any]:
        if not self.pipeline:
            raise ValueError("the pipeline has no stages, or it was closed")
        ranks = find_ranks(told=self._told)
        if in_worker():
            # For stages that are plain functions, the user's own among them.
            TOLD.set(ranks)
        place = find_place(told=ranks)
        self._tell(place, ranks)
        at = self._at = At(self._begin())
        start = self._start(at.epoch, place)
        if self.is_sized:
            return self._sized(at, place, start)
        items = self._unlimited(at, place, start)
        return islice(items, self.nsamples) if self._has_limit else items

    def _tell(self, place: Place, ranks: Ranks) -> None:
        """Say once how shards are divided among the ranks, where the program may mean otherwise."""
        if place.worker == 0:
            message = doubt(self.pipeline, place, ranks, is_asked=self.is_split_asked)
            if message is not None and self._clock.is_first_call():
                warnings.warn(message, stacklevel=3)

    @property
    def _num_passes(self) -> int:
        """Passes an epoch; shards without end make passes without end."""
        return _ENDLESS if self._is_resampled else self.repetitions

    @property
    def _is_resampled(self) -> bool:
        source = self.pipeline[0] if self.pipeline else None
        return isinstance(source, ResampledShards) and source.in_passes

    @property
    def _has_limit(self) -> bool:
        return self.repetitions != 1 and self.nsamples > 0

    @property
    def is_sized(self) -> bool:
        """Whether epochs are cut from an endless line of passes."""
        return self.repetitions == _ENDLESS and self.nsamples > 0

    @property
    def goes_on(self) -> bool:
        """Whether such an epoch goes on inside the pass where the last one stopped.

        Where the program itself orders the shards, each epoch is a pass of its own, as in
        WebDataset: readers in passes of different epochs would read the same shards.
        """
        return self.is_sized and (self.shares_epoch or not is_steered(self.pipeline))

    @property
    def is_endless(self) -> bool:
        """Whether an epoch has no end."""
        return self._num_passes == _ENDLESS and not self._has_limit

    def _begin(self) -> int:
        """The epoch that begins; inside another pipeline it is that one's pass."""
        run = CURRENT.get()
        return self._clock.begin() if run is None else run.number

    def _unlimited(self, at: At, place: Place, start: Start | None) -> Iterator[Any]:
        """An epoch of whole passes."""
        num = self._num_passes
        if num == _ENDLESS:
            first, end = at.epoch * PASSES_APART, _ENDLESS
        else:
            first, end = at.epoch * num, (at.epoch + 1) * num
        start = start or Start(first)
        at.begin(start)
        return _counting(self._passes(at, place, start, end), at)

    def _sized(self, at: At, place: Place, start: Start | None) -> Iterator[Any]:
        """An epoch of a given size, cut from the endless line of passes."""
        num = self._share(place)
        # A copy runs the passes: they must not keep alive who keeps them.
        runner = copy.copy(self)
        if not self.goes_on:
            start = start or Start(at.epoch * PASSES_APART)
            at.begin(start)
            items = runner._joined_passes(at, place, start.number, start.taken)
            return _cut(islice(items, start.discard, None), at, num, None, place)
        live = self._live
        if start is None and live is not None and live.is_next(at.epoch):
            live.at.epoch, live.at.yielded, live.at.is_done = at.epoch, 0, False
            at = self._at = live.at
        else:
            if start is None and self._slots is not None:
                start = self._slots.get(place, at.epoch)
                if start is not None and self._is_resampled and start.taken > _MAX_AGAIN:
                    # Shards without end promise no sample: new ones cost less than the way back.
                    start = Start(start.number + 1)
            start = start or Start(at.epoch * PASSES_APART)
            at.begin(start)
            live = Live(runner._passes(at, place, start, _ENDLESS), at, os.getpid())
            self._live = live
            if at.yielded >= num and self._slots is not None:
                self._slots.put(place, at)
        return _cut(live.passes, at, num, self._slots, place)

    def _share(self, place: Place) -> int:
        """How many items of an epoch this reader yields."""
        if not self.shares_epoch:
            return self.nsamples
        return (self.nsamples - place.worker + place.num_workers - 1) // place.num_workers

    def _passes(self, at: At, place: Place, start: Start, end: int) -> Iterator[Any]:
        """The items of passes, one pass after the other."""
        discard = start.discard
        skip = start.taken
        for number in range(start.number, end):
            at.number = number
            is_empty = True
            for item in self._pass(at, place, skip):
                is_empty = False
                if discard:
                    discard -= 1
                    continue
                yield item
            if is_empty and not (start.is_resumed and number == start.number):
                # Nothing came, so nothing will come.
                return
            skip = 0

    def compose(self, *args: Any) -> Self:
        """A new pipeline with more stages; it shares the stages that are there."""
        result = copy.copy(self)
        result.pipeline = [*self.pipeline, *args]
        result._clock = self._clock.copy()
        result._slots = None if self._slots is None else Slots()
        result._live = result._at = None
        return result

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> Self:
        """Make epochs of so many items of what the pipeline yields, each going on behind the last.

        In the workers of a loader, a `WebDataset` shares them: all workers together yield so many.
        A `DataPipeline` yields so many in each worker.
        """
        return self.repeat(nbatches=max(nsamples, nbatches))

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> Self:
        """Make epochs of so many passes, or without end, and of at most so many items."""
        self.repetitions = nepochs if nepochs > 0 else _ENDLESS
        self.nsamples = nbatches
        self._live = None
        self._slots = Slots() if self.is_sized else None
        return self

    def set_epoch(self, epoch: int) -> None:
        """Have this epoch begin next, also in workers that live already."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: epochs are counted from 0")
        if epoch != self._clock.next_epoch:
            self._live = None
            self._clock.set(epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch that begins with the next iteration."""
        return self._clock.next_epoch

    def _identity(self) -> dict[str, Any]:
        passes = self.repetitions if self.repetitions != _ENDLESS else -1
        return {
            "seed": as_seed(self.seed),
            "shards": fingerprint(self.pipeline),
            "size": [passes, self.nsamples],
        }

    def state_dict(self) -> dict[str, Any]:
        """Where this pipeline is, as JSON: for `load_state_dict` of one like it.

        Ranks that are at the same step may take up each other's state; that costs reading the
        epoch up to there, though.
        """
        at = self._at
        if self._clock.worker_began and not in_worker():
            raise StateError(
                "workers of a plain DataLoader read this dataset, and only they know how far they "
                "are: use wds.WebLoader and its state_dict()"
            )
        place = find_place(told=self._told)
        position: dict[str, Any] = {"epoch": self.next_epoch, "places": {}}
        if at is not None and not at.is_done:
            position = {"epoch": at.epoch, "places": {"0": [at.number, at.taken, at.yielded]}}
        elif at is not None and self.goes_on:
            position["places"] = {"0": [at.number, at.taken, 0]}
        return {
            "version": VERSION,
            **self._identity(),
            **position,
            "rank": place.rank,
            "world_size": place.world_size,
            "num_workers": place.num_workers,
            "worker": place.worker,
            "drawn": drawn(self.pipeline),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state says, with the next iteration."""
        place = find_place(told=self._told)
        check_state(state, {**self._identity(), "world_size": place.world_size})
        redraw(self.pipeline, state, place.rank)
        self._resume = state
        self._live = self._at = None
        self._clock.set(state["epoch"])

    def _start(self, epoch: int, place: Place) -> Start | None:
        """Where a state that was loaded says that this reader goes on in an epoch."""
        state, self._resume = self._resume, None
        if state is None or state["epoch"] != epoch:
            return None
        if state["num_workers"] != place.num_workers:
            raise StateError(
                f"the state was taken with {state['num_workers']} workers, and this reader is one "
                f"of {place.num_workers}: use the same num_workers"
            )
        is_own = "worker" in state
        found = state["places"].get("0" if is_own else str(place.worker))
        if found is None or (is_own and state["worker"] != place.worker):
            return None
        number, taken, yielded = found
        if state["rank"] == place.rank:
            return Start(number, taken, yielded, is_resumed=True)
        # What another rank has taken in is not known: what it gave out is run through again.
        number, discard = 0, yielded
        if self.goes_on:
            discard += epoch * self._share(place)
        elif self._num_passes == _ENDLESS:
            number = epoch * PASSES_APART
        else:
            number = epoch * self._num_passes
        return Start(number, yielded=yielded, discard=discard, is_resumed=True)


def _counting(items: Iterator[Any], at: At) -> Iterator[Any]:
    """Count what an epoch yields, and note its end."""
    for item in items:
        at.yielded += 1
        yield item
    at.is_done = True


def _cut(
    passes: Iterator[Any], at: At, num: int, slots: Slots | None, place: Place
) -> Iterator[Any]:
    """The next items of an endless line, until the epoch has so many."""
    while at.yielded < num:
        try:
            item = next(passes)
        except StopIteration:
            break
        at.yielded += 1
        if at.yielded == num and slots is not None:
            # Before the last item goes out: who takes it may not come back.
            slots.put(place, at)
        yield item
    at.is_done = True
