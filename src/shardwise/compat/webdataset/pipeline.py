"""Pipelines: a source followed by stages, with epochs, seeds and a state.

A pass through the pipeline depends on (seed, number of the pass, rank, worker) alone, however its
worker was started: each stage that draws random numbers gets its key while the pass is built. Epoch
e of a plain pipeline is pass e; `with_epoch` cuts the endless line of passes into epochs of a given
size, each continuing where the last one stopped.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Self

from torch.utils.data import get_worker_info

from shardwise.base.errors import StateError
from shardwise.base.ranks import Ranks
from shardwise.compat.webdataset import positions, readers
from shardwise.compat.webdataset.positions import EpochCounter
from shardwise.compat.webdataset.readers import Position, Reader
from shardwise.compat.webdataset.stages import PASSES_APART, StageList, division_warning, is_steered
from shardwise.compat.webdataset.utils import PipelineStage

ENDLESS = sys.maxsize
# New workers read at most 20,000 samples of a resampled pass again, to continue after them.
_MAX_AGAIN = 20_000


class DataPipeline(StageList):
    """A source, and stages that each take an iterator and return one.

    Args:
        *args: the stages; the first is an iterable dataset, a list or a function without
            arguments; None is left out, lists of stages are joined.
        seed: what all random stages draw from; None for the environment's `WDS_SEED`, or 0.
        **kwargs: have no effect.
    """

    # Whether the workers of a loader share an epoch's size, or each yields all of it. Programs that
    # build their own pipelines divide by the number of workers themselves.
    shares_epoch = False
    # Whether the program itself chooses how shards are divided among the ranks.
    is_split_asked = True

    def __init__(self, *args: Any, seed: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        super().__init__(*args, seed=seed)
        # Passes an epoch, and the most items; below 1 for no limit.
        self.repetitions = 1
        self.nsamples = -1
        self._epochs = EpochCounter()
        # Positions at which a loaded state continues, by worker.
        self._loaded: dict[int, Position] = {}
        self._inherited_ranks: Ranks | None = None
        self._position: Position | None = None
        # The passes that the next sized epoch continues, and the process that reads them.
        self._open_passes: tuple[int, Position, Iterator[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Found here, in the process that has the process group, for the one that has not.
        ranks = readers.find_ranks(inherited=self._inherited_ranks)
        own = {"_inherited_ranks": ranks, "_position": None, "_open_passes": None}
        return self.__dict__ | own

    def compose(self, *args: Any) -> Self:
        result = copy.copy(self)
        result.pipeline = [*self.pipeline, *args]
        result._epochs = EpochCounter(self.next_epoch)
        result._open_passes = result._position = None
        return result

    def close(self) -> None:
        self._open_passes = None
        for stage in self.pipeline:
            if hasattr(stage, "close"):
                stage.close()
        self.pipeline = []

    @property
    def _num_passes(self) -> int:
        """Passes per epoch; shards without end make passes without end."""
        return ENDLESS if self._is_resampled else self.repetitions

    @property
    def _has_limit(self) -> bool:
        return self.repetitions != 1 and self.nsamples > 0

    @property
    def is_sized(self) -> bool:
        """Whether epochs are cut from an endless line of passes."""
        return self.repetitions == ENDLESS and self.nsamples > 0

    @property
    def is_endless(self) -> bool:
        return self._num_passes == ENDLESS and not self._has_limit

    @property
    def goes_on(self) -> bool:
        """Whether such an epoch continues inside the pass where the last one stopped."""
        # If the program orders the shards, each epoch is its own pass, as in WebDataset:
        # readers in passes of different epochs would read the same shards.
        return self.is_sized and (self.shares_epoch or not is_steered(self.pipeline))

    def __iter__(self) -> Iterator[Any]:
        if not self.pipeline:
            raise ValueError("the pipeline has no stages, or it was closed")
        ranks = readers.find_ranks(inherited=self._inherited_ranks)
        if get_worker_info() is not None:
            # For stages that are plain functions, the user's own among them.
            readers.INHERITED_RANKS.set(ranks)
        reader = readers.find_reader(inherited=ranks)
        self._warn_of_division(reader, ranks)
        position = self._begin(reader)
        self._epochs.go_on(position)
        position = self._position = self._loaded_at(position) or position
        self._loaded.pop(reader.worker, None)
        if self.is_sized:
            return self._read_epoch(position)
        return self._whole_passes(position, self.nsamples if self._has_limit else ENDLESS)

    def _reader(self) -> Reader:
        return readers.find_reader(inherited=self._inherited_ranks)

    def _warn_of_division(self, reader: Reader, ranks: Ranks) -> None:
        """Warn once how shards are divided among the ranks, if the program may mean otherwise."""
        if reader.worker == 0:
            message = division_warning(self.pipeline, reader, ranks, is_asked=self.is_split_asked)
            if message is not None and self._epochs.is_first_warning():
                warnings.warn(message, stacklevel=3)

    def _begin(self, reader: Reader) -> Position:
        """The epoch that starts; inside another pipeline it is that one's pass."""
        current = readers.CURRENT_PASS.get()
        epoch = self._epochs.begin() if current is None else current.number
        return Position(epoch, reader, self._first_pass(epoch))

    def _first_pass(self, epoch: int) -> int:
        num = self._num_passes
        return epoch * (PASSES_APART if num == ENDLESS else num)

    def iterator1(self) -> Iterator[Any]:
        return self._pass(Position(0, self._reader(), self.next_epoch))

    def iterator(self) -> Iterator[Any]:
        return self._whole_passes(self._begin(self._reader()), ENDLESS)

    def _whole_passes(self, position: Position, limit: int) -> Iterator[Any]:
        num = self._num_passes
        end = ENDLESS if num == ENDLESS else self._first_pass(position.epoch) + num
        return self._take_items(self._passes(position, end), position, limit)

    def _read_epoch(self, position: Position) -> Iterator[Any]:
        num = self._share(position.reader)
        if not self.goes_on:
            return self._take_items(self._joined_passes(position), position, num)
        pid, last, items = self._open_passes or (0, position, iter(()))
        if pid == os.getpid() and last.epoch == position.epoch - 1:
            last.epoch, last.num_yielded, last.is_done = position.epoch, 0, False
            self._position = position = last
        else:
            self._open_passes = None
            # A copy runs the passes: they must not keep the pipeline alive that keeps them.
            items = copy.copy(self)._passes(position, ENDLESS)
            self._open_passes = os.getpid(), position, items
            if position.num_yielded >= num:
                self._note_end(position)
        return self._take_items(items, position, num)

    def _share(self, reader: Reader) -> int:
        if not self.shares_epoch:
            return self.nsamples
        return (self.nsamples - reader.worker + reader.num_workers - 1) // reader.num_workers

    def _take_items(self, items: Iterator[Any], position: Position, num: int) -> Iterator[Any]:
        """The next items, until the epoch has `num`; counts them and notes its end."""
        goes_on = self.goes_on
        num_discarded, position.num_discarded = position.num_discarded, 0
        for _ in islice(items, num_discarded):
            pass
        while position.num_yielded < num:
            try:
                item = next(items)
            except StopIteration:
                break
            position.num_yielded += 1
            if goes_on and position.num_yielded >= num:
                # Before the last item goes out: its taker may not come back.
                self._note_end(position)
            yield item
        position.is_done = True

    def _note_end(self, position: Position) -> None:
        """Let the reader's next epoch continue there, also in another process."""
        end = replace(position, epoch=position.epoch + 1, num_yielded=0)
        if self._is_resampled and end.num_prefix > _MAX_AGAIN:
            # Shards without end promise no sample: new ones cost less than the way back.
            end.number, end.num_prefix = end.number + 1, 0
        self._epochs.put(end)

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> Self:
        """Make epochs of `nsamples` items, over a loader's workers (a `DataPipeline`'s: each)."""
        return self.repeat(nbatches=max(nsamples, nbatches))

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> Self:
        """Make epochs of `nepochs` passes, or without end, and of at most `nbatches` items."""
        self.repetitions = nepochs if nepochs > 0 else ENDLESS
        self.nsamples = nbatches
        self._open_passes = None
        self._epochs = EpochCounter(self.next_epoch)
        return self

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next one, also in workers that live already."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: epochs are counted from 0")
        if epoch != self.next_epoch:
            self._open_passes = None
            if self._epochs.was_begun_by_worker:
                # Workers have continued from the loaded state already.
                self._loaded = {}
            self._epochs.set(epoch)

    @property
    def next_epoch(self) -> int:
        return self._epochs.next_epoch

    def _identity(self) -> dict[str, Any]:
        passes = self.repetitions if self.repetitions != ENDLESS else -1
        return {
            "seed": readers.as_seed(self.seed),
            "shards": positions.fingerprint(self.pipeline),
            "size": [passes, self.nsamples],
        }

    def state_dict(self) -> dict[str, Any]:
        """The position of this pipeline as JSON, for `load_state_dict` of one like it.

        Ranks at the same step may load each other's state: they read the epoch up to there.

        Raises:
            StateError: workers of another loader than `WebLoader` read this pipeline.
        """
        if self._epochs.was_begun_by_worker and get_worker_info() is None:
            raise StateError(
                "workers of a plain DataLoader read this dataset, and only they know how far they "
                "are: use wds.WebLoader and its state_dict()"
            )
        position, epoch, places = self._last_position(), self.next_epoch, {}
        if position is not None and not position.is_done:
            epoch, places = position.epoch, {"0": position.place}
        elif position is not None and self.goes_on:
            places = {"0": replace(position, num_yielded=0).place}
        reader = self._reader()
        return {**self._state(epoch, places, reader), "worker": reader.worker}

    def _last_position(self) -> Position | None:
        """The position in the last epoch, or the loaded state's position in the next one."""
        if self._position is None:
            return self._loaded_at(Position(self.next_epoch, self._reader()))
        return self._position

    def _loaded_at(self, begin: Position) -> Position | None:
        """The position of a loaded state in an epoch; None if the state is of another epoch."""
        at = self._loaded.get(begin.reader.worker)
        if at is None or at.epoch != begin.epoch:
            return None
        if at.reader.num_workers != begin.reader.num_workers:
            raise StateError(
                f"the state was taken with {at.reader.num_workers} workers, and this reader is one "
                f"of {begin.reader.num_workers}: use the same num_workers"
            )
        return replace(at)

    def _state(self, epoch: int, places: dict[str, Any], reader: Reader) -> dict[str, Any]:
        return {
            "version": positions.VERSION,
            **self._identity(),
            "epoch": epoch,
            "places": places,
            "rank": reader.rank,
            "world_size": reader.world_size,
            "num_workers": reader.num_workers,
            "drawn": [stage.entropy for stage in positions.drawing(self.pipeline)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a state of the same shards, seed, size and ranks; else raise StateError."""
        reader = self._reader()
        positions.check_state(state, {**self._identity(), "world_size": reader.world_size})
        positions.restore_drawn_seeds(self.pipeline, state, reader.rank)
        self._resume_from(state["epoch"], self._loaded_positions(state, reader))

    def _loaded_positions(self, state: dict[str, Any], reader: Reader) -> list[Position]:
        epoch, result = state["epoch"], []
        for name, place in state["places"].items():
            worker = state.get("worker", int(name))
            own = replace(reader, worker=worker, num_workers=state["num_workers"])
            at = Position(epoch, own, *place)
            if state["rank"] != reader.rank:
                # The prefix of another rank is not known: the items that it yielded are read again.
                num = at.num_yielded + (epoch * self._share(own) if self.goes_on else 0)
                first = 0 if self.goes_on else self._first_pass(epoch)
                at = Position(epoch, own, first, 0, at.num_yielded, num)
            result.append(at)
        return result

    def _resume_from(self, epoch: int, places: list[Position]) -> None:
        self._loaded = {at.reader.worker: at for at in places}
        self._open_passes = self._position = None
        self._epochs.set(epoch)
