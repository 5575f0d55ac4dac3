"""torch's DataLoader for pipelines: workers know their epoch and where to continue, and report it.

Keeps I4 and I10: ranks are found in the main process, and the state counts what was yielded, never
what workers have prefetched: each batch of a worker carries its position.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from torch.utils.data import get_worker_info

from shardwise.base.errors import StateError
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.positions import VERSION, check_state
from shardwise.compat.webdataset.pytorch import DataLoader, IterableDataset
from shardwise.compat.webdataset.readers import Position, Reader, find_ranks
from shardwise.compat.webdataset.stages import is_stateless
from shardwise.compat.webdataset.utils import identity
from shardwise.torch.shared_batches import SharedMemoryCollate

# The worker of a placeholder, so that a resumed epoch starts with the worker whose turn it is.
_NO_WORKER = -1


class _Tagged(IterableDataset[Any]):
    """A pipeline whose collate function, in the worker, tags batches with (worker, *place)."""

    def __init__(self, dataset: DataPipeline) -> None:
        super().__init__()
        self.dataset = dataset
        self.collate_items: Callable[[Any], Any] = identity
        # Workers before this one yield a batch of placeholders first.
        self.first_worker = 0
        self.num_placeholders = 1

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        self._worker = 0 if info is None else info.id
        self._is_waiting = self._worker < self.first_worker
        # Only workers that start again have a turn to wait for.
        self.first_worker = 0
        placeholders = repeat(None, self.num_placeholders if self._is_waiting else 0)
        return chain(placeholders, iter(self.dataset))

    def collate(self, data: Any) -> Any:
        if self._is_waiting:
            self._is_waiting = False
            return None, (_NO_WORKER,)
        at = self.dataset._position
        assert at is not None
        return self.collate_items(data), (self._worker, *at.place)


class StatefulLoader(DataLoader[Any]):
    """A DataLoader that knows where a pipeline's workers are; plain for other datasets."""

    def __init__(self, dataset: Any, *args: Any, **kw: Any) -> None:
        super().__init__(dataset, *args, **kw)
        # Positions of the workers after the last batch that was yielded.
        self._places: dict[int, list[int]] = {}
        self._last_worker = -1
        self._is_done = True
        self._is_loaded = False
        # The epoch that is read, or was read last.
        self.epoch = -1
        self.has_state = isinstance(dataset, DataPipeline)
        self._tagged = _Tagged(dataset)
        if self.has_state and self.num_workers and dataset.goes_on:
            # Epochs that continue where the last one stopped: workers that live on need not read
            # their way there. torch refuses to have this assigned.
            self.__dict__["persistent_workers"] = True

    def _get_iterator(self) -> Any:
        if not self.has_state:
            return super()._get_iterator()
        self._tagged.collate_items = self.collate_fn
        # As torch's iterators see it; the user sees the dataset and the function that were given.
        tagged = copy.copy(self)
        collate = SharedMemoryCollate(self._tagged.collate)
        tagged.__dict__.update(dataset=self._tagged, collate_fn=collate)
        return DataLoader._get_iterator(tagged)

    def __iter__(self) -> Any:
        return self._batches() if self.has_state else super().__iter__()

    def _batches(self) -> Iterator[Any]:
        dataset = self._tagged.dataset
        ranks = dataset._inherited_ranks = find_ranks(inherited=dataset._inherited_ranks)
        # Here, and not in a worker, whose warnings are easily overlooked.
        dataset._warn_of_division(self._reader(), ranks)
        # Also workers that live on start this epoch, whatever became of the last one.
        epoch = dataset.next_epoch
        dataset._epochs.set(epoch)
        if not self._is_at_start:
            self._places, self._last_worker = {}, -1
        self.epoch, self._is_done, self._is_loaded = epoch, False, False
        self._tagged.first_worker = (self._last_worker + 1) % max(1, self.num_workers)
        self._tagged.num_placeholders = self.batch_size or 1
        items = super().__iter__()
        # The workers have both.
        self._tagged.first_worker, dataset._loaded = 0, {}
        for batch, (worker, *place) in items:
            if worker != _NO_WORKER:
                self._places[worker], self._last_worker = place, worker
                yield batch
        # Workers start the next epoch where they ended this one, if it continues.
        ends = self._places if dataset.goes_on else {}
        self._places = {worker: [*place[:2], 0, *place[3:]] for worker, place in ends.items()}
        self._last_worker = -1
        self._is_done = True
        if self.num_workers:
            # Workers have counted on; a loader that was given up halfway may have one behind.
            dataset._epochs.set(self.epoch + 1)

    def _reader(self) -> Reader:
        ranks = find_ranks(inherited=self._tagged.dataset._inherited_ranks)
        return Reader(ranks.rank, ranks.world_size, 0, max(1, self.num_workers))

    @property
    def _is_at_start(self) -> bool:
        return self._is_done or (self._is_loaded and self.epoch == self.next_epoch)

    def close(self) -> None:
        end = getattr(self._iterator, "_shutdown_workers", None)
        if end is not None:
            end()
        self._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """The position of each worker, as of the batch that was yielded last."""
        if not self.has_state:
            raise StateError(
                f"only pipelines have a state, and this loader reads a "
                f"{type(self.dataset).__name__}: use WebDataset or DataPipeline"
            )
        if self._is_done or self._is_loaded:
            return self.start_state()
        return self._state(self.epoch, self._places, self._last_worker)

    def _state(self, epoch: int, places: dict[int, list[int]], last_worker: int) -> dict[str, Any]:
        named = {str(worker): place for worker, place in sorted(places.items())}
        sizes = {"last_worker": last_worker, "batch_size": self.batch_size}
        return {**self._tagged.dataset._state(epoch, named, self._reader()), **sizes}

    def start_state(self) -> dict[str, Any]:
        if self._is_at_start:
            return self._state(self.next_epoch, self._places, self._last_worker)
        return self._state(self.next_epoch, {}, -1)

    @property
    def next_epoch(self) -> int:
        return int(self._tagged.dataset.next_epoch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a state with the next iteration; restart living workers."""
        if not self.has_state:
            raise StateError(f"a loader of {type(self.dataset).__name__} has no state to load")
        sizes = {"num_workers": max(1, self.num_workers), "batch_size": self.batch_size}
        check_state(state, sizes)
        self._tagged.dataset.load_state_dict(state)
        self.close()
        loaded = self._tagged.dataset._loaded_positions(state, self._reader())
        self._places = {at.reader.worker: at.place for at in loaded}
        self._last_worker, self.epoch = state["last_worker"], state["epoch"]
        self._is_done, self._is_loaded = False, True

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next one; the epoch that was just loaded keeps its position."""
        if self.has_state:
            self._tagged.dataset.set_epoch(epoch)


class LoaderPipeline(DataPipeline):
    """A pipeline that starts with a loader."""

    def __init__(self, loader: StatefulLoader) -> None:
        super().__init__(loader, seed=getattr(loader.dataset, "seed", None))

    loader: Any = property(lambda self: self.pipeline[0])
    # The loader's own values.
    num_workers = property(attrgetter("loader.num_workers"))
    batch_size = property(attrgetter("loader.batch_size"))
    dataset = property(attrgetter("loader.dataset"))

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.next_epoch:
            super().set_epoch(epoch)
            num_passes = 1 if self._num_passes > epoch else self._num_passes
            self.loader.set_epoch(epoch * num_passes)

    def _pass(self, position: Position, skip: int = 0) -> Iterator[Any]:
        if self.loader.has_state:
            position.loader_state = self.loader.start_state()
        return super()._pass(position, skip)

    def state_dict(self) -> dict[str, Any]:
        """The position of this pipeline as JSON, for `load_state_dict` of one like it.

        If stages after the loader keep samples back, such as a shuffle, the epoch is read again up
        to there. With an endless dataset (`resampled`), the samples that they held are drawn again.

        Raises:
            StateError: the loader's dataset is not a pipeline.
        """
        position, loader_state = self._last_position(), self.loader.state_dict()
        number, num_prefix = None, 0
        if position is not None and (not position.is_done or self.goes_on):
            number = position.number
            if not self.dataset.is_endless and not all(map(is_stateless, self.pipeline[1:])):
                loader_state = position.loader_state or self.loader.start_state()
                num_prefix = position.num_prefix
        inside = None if position is None or position.is_done else position
        return {
            "version": VERSION,
            "size": self._identity()["size"],
            "epoch": self.next_epoch if inside is None else inside.epoch,
            "pass": number,
            "taken": num_prefix,
            "yielded": 0 if inside is None else inside.num_yielded,
            "loader": loader_state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a state of the same pipeline, workers and ranks; else raise StateError."""
        check_state(state, {"size": self._identity()["size"]})
        self.loader.load_state_dict(state["loader"])
        place = (state["epoch"], self._reader(), state["pass"], state["taken"], state["yielded"])
        self._resume_from(state["epoch"], [] if state["pass"] is None else [Position(*place)])
