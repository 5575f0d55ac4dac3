"""Where a pipeline is: which pass, and how far in it; for one reader, and kept between epochs.

A pass is one run of all stages, from the list of shards on. It is the same each time it is run, so
a position is the pass's number and how many items have come out of the part of the pipeline that
keeps items back (its prefix: everything up to the last shuffle).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

from torch.utils.data import get_worker_info

from shardwise.compat.webdataset.readers import Reader
from shardwise.errors import StateError
from shardwise.plan.permute import mix

_EPOCH_BITS = 32
_EPOCH_MASK = (1 << _EPOCH_BITS) - 1
# The cells: the epoch behind the last one and a mark of who began that (0 for the main process,
# else the workers' common seed); how often the epoch was set, and to which; whether the pipeline
# has warned.
_WORD, _NUM_SETS, _SET_TO, _HAS_WARNED = range(4)


class SharedIntegers:
    """Integers of 64 bits that worker processes share; any other copy has its own."""

    def __init__(self, values: list[int], cells: Any = None) -> None:
        self._cells: Any = RawArray("q", values) if cells is None else cells

    def __getitem__(self, place: int) -> int:
        return int(self._cells[place])

    def __setitem__(self, place: int, value: int) -> None:
        self._cells[place] = value

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            # A worker process is being started: the memory itself goes along.
            return SharedIntegers, ([], self._cells)
        return SharedIntegers, (list(self._cells),)


class EpochCounter:
    """Counts the epochs that have begun, over generations of workers.

    torch's DataLoader may start new workers for every epoch, from a dataset that knows nothing of
    the epochs before. The count is in anonymous shared memory: workers that were started together
    see the same epoch, the next generation the next one. It needs no lock, and a killed process
    leaves no name behind.
    """

    def __init__(self, next_epoch: int = 0) -> None:
        self._cells = SharedIntegers([next_epoch, 0, next_epoch, 0])
        # Of the worker process that `_own_mark` names: its generation, and what it has read.
        self._own_mark: tuple[int, int] | None = None
        self._seen_sets = 0
        self._epoch = -1

    def copy(self) -> EpochCounter:
        """A counter of its own with the same count."""
        return EpochCounter(self.next_epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch that begins next, as far as this process can see."""
        return self._cells[_WORD] & _EPOCH_MASK

    @property
    def was_begun_by_worker(self) -> bool:
        """Whether the last epoch was begun by workers."""
        return bool(self._cells[_WORD] >> _EPOCH_BITS)

    def is_first_warning(self) -> bool:
        """True once, in all processes that share this counter."""
        is_first = not self._cells[_HAS_WARNED]
        self._cells[_HAS_WARNED] = 1
        return is_first

    def set(self, epoch: int) -> None:
        """Have this epoch begin next, also in workers that live already."""
        self._cells[_SET_TO] = epoch
        self._cells[_NUM_SETS] = self._cells[_NUM_SETS] + 1
        self._cells[_WORD] = epoch

    def begin(self) -> int:
        """The epoch that begins now."""
        info = get_worker_info()
        if info is None:
            epoch, mark = self.next_epoch, 0
        else:
            # Workers that were started together have seeds that follow one another.
            mark = mix(info.seed - info.id) >> (_EPOCH_BITS + 1) | 1
            if self._own_mark == (os.getpid(), mark):
                # A worker that lives on from epoch to epoch.
                was_set = self._cells[_NUM_SETS] != self._seen_sets
                epoch = self._cells[_SET_TO] if was_set else self._epoch + 1
            else:
                word = self._cells[_WORD]
                was_begun = word >> _EPOCH_BITS == mark
                epoch = (word & _EPOCH_MASK) - was_begun
            self._own_mark = os.getpid(), mark
        self._seen_sets = self._cells[_NUM_SETS]
        self._epoch = epoch
        self._cells[_WORD] = mark << _EPOCH_BITS | (epoch + 1)
        return epoch


VERSION = 2
# Where the passes of an epoch begin that can't know where the last one ended.
PASSES_APART = 1 << 20
_MAX_WORKERS = 256
# The epoch behind the one that ended, number of workers, pass, items of its prefix.
_NUM_CELLS = 4


@dataclass
class Position:
    """How far a reader is.

    Attributes:
        epoch: the epoch.
        reader: which reader.
        number: the pass.
        num_prefix: items that the pass's prefix has given.
        num_yielded: items of the epoch that have come out.
        num_discarded: whole items to leave out first, where `num_prefix` is not known.
        is_resumed: whether a state gave the place: the pass may be at its end then.
        is_done: whether the epoch is over.
        rotation: by how many readers the shares are rotated in the pass.
        loader_state: the state of the loader at the beginning of the pass, where there is one.
    """

    epoch: int
    reader: Reader
    number: int = 0
    num_prefix: int = 0
    num_yielded: int = 0
    num_discarded: int = 0
    is_resumed: bool = False
    is_done: bool = False
    rotation: int = 0
    loader_state: dict[str, Any] | None = None


@dataclass
class OpenPasses:
    """An endless line of passes that the next epoch continues, in the same process."""

    items: Iterator[Any]
    position: Position
    pid: int

    def is_next(self, epoch: int) -> bool:
        """Whether the epoch continues these passes."""
        return self.pid == os.getpid() and self.position.epoch == epoch - 1


class EpochEnds:
    """Where each worker was at the end of its last epoch, for the worker that follows it."""

    def __init__(self) -> None:
        self._cells = SharedIntegers([0] * (_NUM_CELLS * _MAX_WORKERS))

    def put(self, position: Position) -> None:
        """Note the end of an epoch."""
        reader = position.reader
        if reader.worker < _MAX_WORKERS:
            first = _NUM_CELLS * reader.worker
            values = (reader.num_workers, position.number, position.num_prefix)
            for i, value in enumerate(values, 1):
                self._cells[first + i] = value
            # The epoch is written last: the other cells are whole then.
            self._cells[first] = position.epoch + 1

    def restore(self, position: Position) -> None:
        """Put a position where the epochs before its own ended, if the same workers read them."""
        reader = position.reader
        if reader.worker >= _MAX_WORKERS:
            return
        first = _NUM_CELLS * reader.worker
        behind, num_workers, *place = (self._cells[first + i] for i in range(_NUM_CELLS))
        if 0 < behind <= position.epoch and num_workers == reader.num_workers:
            position.number, position.num_prefix = place


def fingerprint(stages: list[Any]) -> str | None:
    """A digest of the list of shards, where the pipeline begins with a list."""
    urls = getattr(stages[0], "urls", None) if stages else None
    if not isinstance(urls, list):
        return None
    return hashlib.sha256(json.dumps(urls).encode()).hexdigest()[:16]


def _drawing(stages: Any) -> Iterator[Any]:
    """The lists of shards that have drawn a seed for themselves, those of mixtures included."""
    for stage in stages if isinstance(stages, list | tuple) else ():
        if getattr(stage, "entropy", 0):
            yield stage
        yield from _drawing(getattr(stage, "pipeline", None))
        yield from _drawing(getattr(stage, "datasets", None))


def drawn_seeds(stages: list[Any]) -> list[int]:
    """The seeds that lists of shards have drawn for themselves."""
    return [stage.entropy for stage in _drawing(stages)]


def restore_drawn_seeds(stages: list[Any], state: dict[str, Any], rank: int) -> None:
    """Give lists of shards the seeds that those of a state had drawn.

    Raises:
        StateError: the state holds other seeds, or those of another rank.
    """
    drawing, seeds = list(_drawing(stages)), state.get("drawn") or []
    if not drawing and not seeds:
        return
    if not isinstance(seeds, list) or len(seeds) != len(drawing) or state["rank"] != rank:
        raise StateError(
            f"{len(drawing)} lists of resampled shards here have drawn a seed themselves, and the "
            f"state of rank {state['rank']} holds {seeds}: give each rank ({rank} here) the state "
            "that it saved, or ResampledShards(seed=..., deterministic=True)"
        )
    for stage, seed in zip(drawing, seeds, strict=True):
        stage.entropy = seed


def check_state(state: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse a state of something else.

    Raises:
        StateError: an entry differs; the message says which.
    """
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise StateError(
            f"not a state of version {VERSION} of a WebDataset pipeline: "
            f"{state if not isinstance(state, dict) else state.get('version')!r}"
        )
    wrong = [
        f"{name}: {state.get(name)!r} in the state, {value!r} here"
        for name, value in expected.items()
        if state.get(name) != value
    ]
    if wrong:
        raise StateError(
            "the state belongs to another pipeline: " + "; ".join(wrong) + ". Restore what it was, "
            "or begin without the state"
        )
