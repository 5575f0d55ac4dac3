"""A trace of one epoch for Perfetto and Chrome: the training, its waits, and who loaded when.

Source: Chrome's Trace Event Format. Clocks of the processes of one machine agree on Linux.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from shardwise.base.arguments import path_text, suggest_names
from shardwise.engine.request import Batch
from shardwise.storage.write import atomic_write

# Some 100 MB; later batches are left out.
_MAX_EVENTS = 500_000
# Tracks beside those of threads, which have larger numbers.
_TRAINING, _WAITING = 1, 2


@suggest_names
def trace(loader: Any, path: str | os.PathLike[str]) -> Iterator[Any]:
    """Iterate a loader once, and write a trace of it: open the file in ui.perfetto.dev.

    Tracks: the training, the waits, each thread that loads (but those of batch servers), and how
    many batches are ready. The file is written when the epoch ends, or the loop is left.
    """
    path, rank = path_text("path", path), loader.rank
    names = {_TRAINING: "training", _WAITING: "waiting for the loader"}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}}
        for track, name in names.items()
    ]
    returned, seen = 0.0, frozenset[tuple[float, float, int]]()

    def add(name: str, track: int, began: float, end: float, **args: Any) -> None:
        times = {"ts": began * 1e6, "dur": (end - began) * 1e6}
        events.append({"ph": "X", "name": name, "pid": rank, "tid": track, **times, "args": args})

    def listen(batch: Batch, *, asked_at: float, ready_at: float, returned_at: float) -> None:
        nonlocal returned, seen
        if len(events) < _MAX_EVENTS:
            if returned:
                add("step", _TRAINING, returned, asked_at)
            milliseconds = {name: 1000 * each for name, each in batch.stages.seconds.items()}
            add("wait", _WAITING, asked_at, ready_at, rows=batch.num_rows, **milliseconds)
            add("hand over", _WAITING, ready_at, returned_at)
            ready = {"ph": "C", "name": "batches ready", "pid": rank, "ts": asked_at * 1e6}
            events.append({**ready, "args": {"ready": batch.num_ready or 0}})
            # Batches that were loaded together have the same spans.
            spans = frozenset(batch.spans)
            for began, end, thread in spans - seen:
                add("load", thread, began, end)
            returned, seen = returned_at, spans

    loader._counts.listener = listen
    try:
        yield from loader
    finally:
        loader._counts.listener = None
        with atomic_write(path, "w") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
