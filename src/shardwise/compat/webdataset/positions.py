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
from typing import Any

from shardwise.compat.webdataset.clock import SharedCells
from shardwise.compat.webdataset.place import Place
from shardwise.errors import StateError

VERSION = 2
# Where the passes of an epoch begin that can't know where the last one ended.
PASSES_APART = 1 << 20
_NUM_SLOTS = 256
_SLOT = 4


@dataclass
class At:
    """How far a reader is."""

    epoch: int
    number: int = 0
    taken: int = 0
    yielded: int = 0
    is_done: bool = False
    turn: int = 0
    origin: dict[str, Any] | None = None

    def begin(self, start: Start) -> None:
        """Be where an epoch begins, or is gone on with."""
        self.number, self.taken, self.yielded = start.number, start.taken, start.yielded


@dataclass(frozen=True)
class Start:
    """Where to go on."""

    number: int
    taken: int = 0
    yielded: int = 0
    discard: int = 0
    is_resumed: bool = False


@dataclass
class Live:
    """An endless line of passes that the next epoch goes on with, in the same process."""

    passes: Iterator[Any]
    at: At
    pid: int

    def is_next(self, epoch: int) -> bool:
        """Whether this is what the epoch goes on with."""
        return self.pid == os.getpid() and self.at.epoch == epoch - 1


class Slots:
    """Where each worker was at the end of its last epoch, for the worker that follows it."""

    def __init__(self) -> None:
        self._cells = SharedCells([0] * (_SLOT * _NUM_SLOTS))

    def put(self, place: Place, at: At) -> None:
        """Note the end of an epoch."""
        if place.worker < _NUM_SLOTS:
            first = _SLOT * place.worker
            # The epoch is written last: what is there then is whole.
            for i, value in ((1, place.num_workers), (2, at.number), (3, at.taken)):
                self._cells[first + i] = value
            self._cells[first] = at.epoch + 1

    def get(self, place: Place, epoch: int) -> Start | None:
        """Where the epochs before this one ended, if the same workers read them."""
        if place.worker >= _NUM_SLOTS:
            return None
        first = _SLOT * place.worker
        ended, num_workers, number, taken = (self._cells[first + i] for i in range(_SLOT))
        if not 0 < ended <= epoch or num_workers != place.num_workers:
            return None
        return Start(number, taken)


def fingerprint(stages: list[Any]) -> str | None:
    """What tells one list of shards from another, where the pipeline begins with one."""
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


def drawn(stages: list[Any]) -> list[int]:
    """The seeds that lists of shards have drawn for themselves."""
    return [stage.entropy for stage in _drawing(stages)]


def redraw(stages: list[Any], state: dict[str, Any], rank: int) -> None:
    """Give lists of shards the seeds that those of a state had drawn."""
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
    """Refuse a state of something else."""
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
