"""Positions of a pipeline's readers, in memory that worker processes share.

A pass, one run of all stages, is the same each time it is run. So a position is the pass's number
and how many items have come out of its prefix: the stages up to the last one that keeps items back.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

from torch.utils.data import get_worker_info

from shardwise.base.errors import StateError
from shardwise.compat.webdataset.readers import Position, Reader
from shardwise.plan.permute import mix
from shardwise.torch.shared_cursor import SharedIntegers

_EPOCH_BITS = 32
_EPOCH_MASK = (1 << _EPOCH_BITS) - 1
# Cells of a counter: the epoch after the last one, with a mark of who started that (0 for the main
# process, else the workers' common seed); how often the epoch was set, and to which; whether the
# pipeline has warned.
_WORD, _NUM_SETS, _SET_TO, _HAS_WARNED = range(4)
# Then each worker has a row for the start of its next epoch, if that continues another one:
# the epoch + 1, the number of workers, and the numbers of a `Position`.
_NUM_CELLS, _MAX_WORKERS = 6, 256
# The format of a state.
VERSION = 2


class EpochCounter:
    """Counts epochs, and where they end, over generations of workers that know of none."""

    def __init__(self, next_epoch: int = 0) -> None:
        rows = [0] * (_NUM_CELLS * _MAX_WORKERS)
        self._cells = SharedIntegers([next_epoch, 0, next_epoch, 0, *rows])
        # The generation of the worker process that `_own_mark` names, and what it has read.
        self._own_mark: tuple[int, int] | None = None
        self._seen_sets = 0
        self._epoch = -1

    @property
    def next_epoch(self) -> int:
        """The epoch that starts next, as far as this process can see."""
        return int(self._cells[_WORD] & _EPOCH_MASK)

    @property
    def was_begun_by_worker(self) -> bool:
        return bool(self._cells[_WORD] >> _EPOCH_BITS)

    def is_first_warning(self) -> bool:
        """True once, in all processes that share this counter."""
        is_first = not self._cells[_HAS_WARNED]
        self._cells[_HAS_WARNED] = 1
        return is_first

    def set(self, epoch: int) -> None:
        self._cells[_SET_TO] = epoch
        self._cells[_NUM_SETS] += 1
        self._cells[_WORD] = epoch

    def begin(self) -> int:
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
                epoch = (word & _EPOCH_MASK) - (word >> _EPOCH_BITS == mark)
            self._own_mark = os.getpid(), mark
        self._seen_sets = self._cells[_NUM_SETS]
        self._epoch = epoch
        self._cells[_WORD] = mark << _EPOCH_BITS | (epoch + 1)
        return epoch

    def put(self, at: Position) -> None:
        row = _row(at.reader)
        if row.stop <= len(self._cells):
            place = [at.number, at.num_prefix, at.num_yielded, at.num_discarded]
            self._cells[row] = [0, at.reader.num_workers, *place]
            # The epoch is written last: the other cells are whole then.
            self._cells[row.start] = at.epoch + 1

    def go_on(self, at: Position) -> None:
        """Move a position to where an epoch ended, if it is a later one of the same workers."""
        behind, num_workers, *place = self._cells[_row(at.reader)] or [0, 0]
        if 0 < behind <= at.epoch + 1 and num_workers == at.reader.num_workers:
            at.number, at.num_prefix, at.num_yielded, at.num_discarded = place


def _row(reader: Reader) -> slice:
    return slice(_NUM_CELLS * reader.worker + 4, _NUM_CELLS * reader.worker + 4 + _NUM_CELLS)


def fingerprint(stages: list[Any]) -> str | None:
    """A digest of the list of shards, if there is one; of a program's own objects, the types."""
    urls = getattr(stages[0], "urls", None) if stages else None
    if not isinstance(urls, list):
        return None
    text = json.dumps(urls, default=lambda url: type(url).__qualname__)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drawing(stages: Any) -> Iterator[Any]:
    """The lists of shards that have drawn a seed, `entropy`, those of mixtures included."""
    for stage in stages if isinstance(stages, list | tuple) else ():
        if getattr(stage, "entropy", 0):
            yield stage
        yield from drawing(getattr(stage, "pipeline", None))
        yield from drawing(getattr(stage, "datasets", None))


def restore_drawn_seeds(stages: list[Any], state: dict[str, Any], rank: int) -> None:
    """Give lists of shards the seeds of a state; `StateError` if they are another rank's."""
    lists, seeds = list(drawing(stages)), state.get("drawn") or []
    if not lists and not seeds:
        return
    if not isinstance(seeds, list) or len(seeds) != len(lists) or state["rank"] != rank:
        raise StateError(
            f"{len(lists)} lists of resampled shards here have drawn a seed themselves, and the "
            f"state of rank {state['rank']} holds {seeds}: give each rank ({rank} here) the state "
            "that it saved, or ResampledShards(seed=..., deterministic=True)"
        )
    for stage, seed in zip(lists, seeds, strict=True):
        stage.entropy = seed


def check_state(state: dict[str, Any], expected: dict[str, Any]) -> None:
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
            "or start without the state; any ranks and workers resume with the native loader, see "
            "sw.from_webdataset"
        )
