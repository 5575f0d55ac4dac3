"""Checks that lines of a coverage directory go together, before and beside adding them up.

A directory may have lines of two jobs, lines that were edited or moved by hand, and lines of a
program that went through positions twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from shardwise.cli.legs import PlacedLine, ranks_text
from shardwise.plan.coverage_line import CoverageLine

__all__ = ["mixed_lines", "repeated_positions", "runs_at_once"]

# What all lines of one pass have in common.
_OF_A_PASS = (
    "is_shared", "world_size", "batch_size", "remainder", "epoch", "begin", "num_samples",
    "fingerprint", "order",
)  # fmt: skip

# The clocks of machines differ: a run may go on with another's state where it is still earlier.
_CLOCK_SKEW_S = 10.0


def mixed_lines(lines: Iterable[PlacedLine]) -> list[str]:
    """Files with lines of several data or orders, and passes whose lines contradict each other."""
    orders: dict[str, list[tuple[str, object]]] = defaultdict(list)
    passes: dict[object, PlacedLine] = {}
    differing = {}
    for placed in lines:
        line = placed.line
        kind = (line.fingerprint, line.order)
        if kind not in orders[placed.file]:
            orders[placed.file].append(kind)
        key = (placed.file, line.run, line.rank, line.number, line.began)
        first = passes.setdefault(key, placed)
        names = [n for n in _OF_A_PASS if getattr(line, n) != getattr(first.line, n)]
        if names:
            differing[key] = (
                f"lines {first.number} and {placed.number} of {placed.file} are of one pass and "
                f"differ in {', '.join(names)}: one of them was changed, or is of another file"
            )
    return [
        f"{file} has lines of {len(kinds)} different data or orders: a loader writes of one alone"
        for file, kinds in sorted(orders.items())
        if len(kinds) > 1
    ] + list(differing.values())


def runs_at_once(lines: Iterable[PlacedLine]) -> list[str]:
    """Runs of one order that were under way at the same time, by when their passes began."""
    times: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for placed in lines:
        times[placed.line.rank][placed.line.run].append(placed.line.began)
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, runs in sorted(times.items()):
        spans = sorted((min(began), max(began), run) for run, began in runs.items())
        for (_, last, one), (first, _, other) in pairwise(spans):
            if first < last - _CLOCK_SKEW_S:
                ranks[one, other].append(rank)
    return [
        f"runs {one} and {other} were under way at the same time on {ranks_text(of)}: give each "
        "job and each loader a coverage directory of its own"
        for (one, other), of in ranks.items()
    ]


def repeated_positions(lines: Iterable[PlacedLine], used: Iterable[PlacedLine]) -> list[str]:
    """Positions that a loader handed out twice in one epoch, without a state loaded in between.

    A loader that goes back to a checkpoint begins another file.

    Args:
        lines: of one data and order.
        used: those of one epoch that count.
    """
    ends: dict[object, dict[int, int]] = defaultdict(dict)
    for placed in lines:
        of_file = ends[_loader_of(placed)]
        number = placed.line.number
        of_file[number] = max(placed.line.last, of_file.get(number, 0))
    ranks: dict[tuple[str, int, int, int, int], set[int]] = defaultdict(set)
    for placed in used:
        line = placed.line
        for number, last in ends[_loader_of(placed)].items():
            if number < line.number and last > line.begin:
                ranks[line.run, line.begin, last, number, line.number].add(line.rank)
    return [
        f"run {run}, {ranks_text(sorted(of))}: positions {begin} to {last} were handed out in pass "
        f"{number} and again in pass {again}, and no state was loaded: set_epoch() named an epoch "
        "that was over, or a loop was left and begun anew"
        for (run, begin, last, number, again), of in ranks.items()
    ]


def _loader_of(placed: PlacedLine) -> tuple[str, str, int, int]:
    """What the passes of one loader through one epoch share."""
    line: CoverageLine = placed.line
    return placed.file, line.run, line.rank, line.epoch
