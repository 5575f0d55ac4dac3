"""The lines of metrics of one rank: its loader's sums, written every 10 s by a separate thread.

The training never waits for the thread, and a full disk costs lines alone. Sums only grow, so any
two lines have all that came between them: the older half of a long file can be thinned out. The map
of the plan, which shards the rank reads and when, goes along for each epoch.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.base.shown import shown_in
from shardwise.loader.coverage_file import local_directory, not_writable
from shardwise.loader.position import Pass
from shardwise.sources.samples import Samples
from shardwise.storage.write import atomic_write

# Columns of steps and rows of shards, at most: 1.5 kB per epoch and rank. In a column, 4 steps are
# looked up, and some 512 samples of each.
_COLUMNS, _ROWS, _STEPS, _SAMPLES = 96, 64, 4, 512


def plan_map(current: Pass, rank: int, dataset: Samples) -> dict[str, Any]:
    """The facts of a pass, and the map of its epoch and the next one; reads no sample.

    Returns:
        JSON: for each of `epochs`, a hex number per range of steps, whose bit k is set if the
        rank reads shards of the k-th of `num_bins` ranges.
    """
    ends = np.cumsum(dataset.shard_sizes)
    num_bins = min(_ROWS, len(ends))
    epochs = []
    # A sampler of the program's own may not expect another thread.
    is_users = current.plan.order.is_users
    is_own = is_users and not type(current.plan.sampler).__module__.startswith("shardwise.")
    for epoch in () if is_own else (current.epoch, current.epoch + 1):
        plan = current.plan.resumed(0, epoch=epoch)
        columns = [0] * min(_COLUMNS, plan.num_steps)
        stride = -(-plan.num_steps // max(1, len(columns) * _STEPS))
        for step in range(0, plan.num_steps, max(1, stride)):
            ids = plan.indices(epoch, step, rank)[:: max(1, plan.batch_size // _SAMPLES)]
            shards = np.searchsorted(ends, ids, side="right") * num_bins // len(ends)
            for shard in np.unique(shards).tolist():
                columns[step * len(columns) // plan.num_steps] |= 1 << shard
        steps = [f"{column:x}" for column in columns]
        epochs.append({"epoch": epoch, "num_steps": plan.num_steps, "columns": steps})
    size, data = current.plan.world_size, shown_in(repr(dataset))[:2000]
    facts = {"rank": rank, "world_size": size, "num_shards": len(ends), "num_bins": num_bins}
    return {"version": 1, "data": data, **facts, "epochs": epochs}


_logger = logging.getLogger("shardwise")
INTERVAL_S = 10.0
# Some 2 MB per rank. Past that, every other line of the older half goes.
MAX_LINES = 1024
# Time that the end of a run waits for its last line, on a disk that hangs.
_LAST_LINE_S = 2.0
# The parts of `loader.stats()` that a line has.
_KEPT = ("totals", "waiting_s", "bound_by", "verdict", "slowest_shards", "executor")


class MetricsFile:
    """A thread and a file for each process of a loader, from its first pass on.

    Raises:
        StorageError, TypeError, ValueError: `directory` can't be made.
    """

    def __init__(
        self, directory: str | os.PathLike[str], coverage: str | os.PathLike[str] | None
    ) -> None:
        self._directory = local_directory("metrics", directory)
        self._coverage = None if coverage is None else str(Path(coverage).absolute())
        self._lines: _Lines | None = None

    def begin(
        self, current: Pass, rank: int, dataset: Samples, stats: Callable[..., dict[str, Any]]
    ) -> None:
        """Start a pass; the thread is started if this process has none for the rank."""
        if self._lines is None or self._lines.owner != (os.getpid(), rank):
            self.close()
            self._lines = _Lines(self._directory, rank, self._coverage)
            # When the loader goes, and at the interpreter's end.
            weakref.finalize(self, self._lines.stop)
        self._lines.work = current, dataset, stats
        self._lines.start()

    def close(self) -> None:
        """Write the last line, and end the thread."""
        if self._lines is not None:
            self._lines.stop()

    def __getstate__(self) -> dict[str, Any]:
        """Another process writes its own file."""
        return {**self.__dict__, "_lines": None}


class _Lines:
    """The file and the thread of one process; `work` is the pass under way."""

    work: tuple[Pass, Samples, Callable[..., dict[str, Any]]]

    def __init__(self, directory: Path, rank: int, coverage: str | None) -> None:
        self.owner = os.getpid(), rank
        self._rank, self._coverage = rank, coverage
        own = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        # `shardwise certify` leaves files of this name alone.
        self._path = directory / f"metrics-{own}-{rank:05d}.jsonl"
        self._last: dict[str, Any] = {}
        self._mapped: Pass | None = None
        self._num_lines, self._has_warned = 0, False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="shardwise-metrics", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None and self.owner[0] == os.getpid():
            self._stopped.set()
            self._thread.join(_LAST_LINE_S)
            self._thread = None

    def _run(self) -> None:
        self._write()
        while not self._stopped.wait(INTERVAL_S):
            self._write()
        self._write()

    def _write(self) -> None:
        current, dataset, stats = self.work
        self._last = stats(self._last)
        plan = current.plan
        head = {"version": 1, "time": time.time(), "interval_s": INTERVAL_S}
        line = {
            **head,
            "rank": self._rank,
            "world_size": plan.world_size,
            "epoch": current.epoch,
            "progress": 1.0 if current.is_whole else current.after()[1] / plan.num_samples,
            **{name: self._last[name] for name in _KEPT},
        }
        try:
            if self._mapped is not current:
                facts = {**plan_map(current, self._rank, dataset), "coverage": self._coverage}
                with atomic_write(self._path.with_suffix(".plan"), "w", fsync=False) as file:
                    json.dump(facts, file)
                self._mapped = current
            self._append(json.dumps(line).encode() + b"\n")
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                text = not_writable("metrics", self._path.parent, error)
                _logger.warning("%s. The training continues without these lines", text)

    def _append(self, data: bytes) -> None:
        with self._path.open("ab", buffering=0) as end:
            size = end.tell()
            if end.write(data) < len(data):
                # A part of a line would spoil the next one.
                end.truncate(size)
                raise OSError("the disk is full")
        self._num_lines += 1
        if self._num_lines > MAX_LINES:
            lines = self._path.read_bytes().splitlines(keepends=True)
            lines = lines[: -MAX_LINES // 2 : 2] + lines[-MAX_LINES // 2 :]
            with atomic_write(self._path, fsync=False) as file:
                file.writelines(lines)
            self._num_lines = len(lines)
