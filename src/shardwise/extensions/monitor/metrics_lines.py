"""Lines of metrics as they are read: what each rank did between two of them, and the straggler."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.base.errors import DataError, StorageError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.engine.stats.counts import difference, percentiles

# The end of a file that a live table reads: some twenty lines.
_TAIL_BYTES = 1 << 16
# A rank is silent if it wrote no line for three times the interval.
_SILENT = 3
# The straggler waits for at least a tenth of its time, and half as long again as ranks do.
_MIN_SHARE, _MIN_RATIO = 0.1, 1.5
Line = Mapping[str, Any]


def read_lines(
    directory: Path, *, only_ends: bool = False
) -> tuple[dict[str, list[Line]], list[str]]:
    """The lines by file, in the order of their ends, and what could not be used, in words.

    Args:
        directory: what loaders had as `metrics=`.
        only_ends: read the last lines of each file alone.

    Raises:
        StorageError: it can't be read, or holds none.
    """
    files: dict[str, list[Line]] = {}
    notes: list[str] = []
    try:
        paths = sorted(directory.glob("metrics-*.jsonl"))
        for path in paths:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL_BYTES) if only_ends else 0)
                is_cut = file.tell() > 0
                # A line without an end is being written, or its process was killed.
                texts = file.read().split(b"\n")[is_cut:-1]
            lines = files[str(path)] = []
            for text in texts:
                try:
                    lines.append(_parse_line(text, path))
                except DataError as error:
                    notes.append(str(error))
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise StorageError(f"the directory of metrics {str(directory)!r}: {error}") from error
    if not paths:
        raise StorageError(
            f"{str(directory)!r} holds no metrics: there is no metrics-*.jsonl in it; ranks write "
            "such files with sw.DataLoader(..., metrics=DIR)"
        )
    read = [(path, lines) for path, lines in files.items() if lines]
    return dict(sorted(read, key=lambda each: each[1][-1]["time"])), notes


def _parse_line(text: bytes, path: Path) -> Line:
    with as_data_error(f"a line of {path.name} can't be used", url=str(path)):
        line: Line = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if line["version"] != 1:
            raise ValueError(f"its version is {line['version']!r}, this release reads 1")
        # Raises what any later use would.
        interval([line, line])
        return line


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text}")
    return number


def interval(lines: Sequence[Line]) -> dict[str, Any]:
    """Summarize a rank between the first and the last of some lines; JSON.

    `wait` is the share of the time that the program waited, `cache_hits` the cache's share of the
    blocks; None without a cache.
    """
    first, last = lines[0], lines[-1]
    counts = difference(last["totals"], first["totals"])
    wall_s = max(1e-3, last["time"] - first["time"])
    # A wait that has not ended yet is in no sum.
    waited = counts["wait_s"] + last["waiting_s"] - first["waiting_s"]
    blocks = counts["hits"] + counts["misses"]
    return {
        "rank": int(last["rank"]),
        "world_size": int(last["world_size"]),
        "epoch": int(last["epoch"]),
        "progress": float(last["progress"]),
        "time": float(last["time"]),
        "rate": counts["samples"] / wall_s,
        "wait": min(1.0, max(0.0, waited) / wall_s),
        "wait_ms": percentiles(counts["wait_ms"]),
        "bound_by": str(last["bound_by"]),
        "verdict": str(last["verdict"]),
        "egress_bytes_s": counts["bytes_fetched"] / wall_s,
        "cache_hits": counts["hits"] / blocks if blocks else None,
        "seconds": {name: float(each) for name, each in counts["seconds"].items()},
        "slowest": {str(e["url"]): float(e["seconds_a_sample"]) for e in last["slowest_shards"]},
        "silent_after_s": _SILENT * float(last["interval_s"]),
    }


def overview(
    files: Mapping[str, Sequence[Line]], notes: list[str], *, num_lines: int, now: float
) -> dict[str, Any]:
    """The ranks of the newest world, over so many last lines of the newest file of each.

    Returns:
        JSON: `world_size`; `straggler`, a rank or None; `ranks`, of each an `interval` and a `mark`
        in words; `notes`, also on ranks without lines.
    """
    # Files are in the order of their ends.
    newest = {lines[-1]["rank"]: interval(lines[-num_lines:]) for lines in files.values()}
    world_size = int([*files.values()][-1][-1]["world_size"]) if files else 0
    ranks = [each for rank, each in sorted(newest.items()) if rank < world_size]
    late = straggler({each["rank"]: each["wait"] for each in ranks})
    for each in ranks:
        silent_s = now - each["time"]
        is_silent = silent_s > each["silent_after_s"] and each["progress"] < 1
        marks = ["straggler"] * (each["rank"] == late) + [f"silent {silent_s:.0f} s"] * is_silent
        each["mark"] = ", ".join(marks)
    missing = world_size - len(ranks)
    lacking = [f"{missing} of {world_size} ranks wrote no line here"] if missing else []
    return {
        "world_size": world_size,
        "straggler": late,
        "ranks": ranks,
        "notes": [*lacking, *notes],
    }


def straggler(waits: Mapping[int, float]) -> int | None:
    """The rank that waits for data much longer than others do, by shares; None where none does."""
    if len(waits) < 2:
        return None
    rank = max(waits, key=waits.__getitem__)
    others = statistics.median(wait for other, wait in waits.items() if other != rank)
    is_late = waits[rank] >= max(_MIN_SHARE, _MIN_RATIO * others)
    return rank if is_late else None
