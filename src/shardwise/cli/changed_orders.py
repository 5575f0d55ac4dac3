"""Orders that a training changed in its middle: what of an older order counts.

A mixture may get other weights at a resume. Its lines are then of two orders that have one past. A
pass goes on from another order where the past at its beginning is that at the end of a line there,
of all ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from shardwise.cli.coverage_lines import PlacedLine

__all__ = ["without_undone"]


def without_undone(
    orders: Sequence[Sequence[PlacedLine]],
) -> tuple[list[list[PlacedLine]], frozenset[str]]:
    """The lines of each order, without those behind the place where another one goes on.

    Args:
        orders: the lines of each order.

    Returns:
        The lines, and the pasts at which one order goes on from another.
    """
    ends = [_ends_of_all_ranks(lines) for lines in orders]
    joined: set[str] = set()
    kept = [list(lines) for lines in orders]
    for number, own in enumerate(ends):
        others = [(n, lines) for n, lines in enumerate(orders) if n != number]
        goes_on = [
            placed.line for _, lines in others for placed in lines
            if placed.line.begin_past in own
        ]  # fmt: skip
        if not goes_on:
            continue
        joined.update(line.begin_past for line in goes_on)
        # The newest counts; what the order itself did later is not undone by it.
        newest = max(goes_on, key=lambda line: line.began)
        kept[number] = [
            placed
            for placed in kept[number]
            if placed.line.began > newest.began
            or _since_begin(placed) <= newest.epoch * newest.num_samples + newest.begin
        ]
    return kept, frozenset(joined)


def _ends_of_all_ranks(lines: Sequence[PlacedLine]) -> set[str]:
    ranks: dict[tuple[str, int], set[int]] = defaultdict(set)
    for placed in lines:
        line = placed.line
        if line.last_past:
            ranks[line.last_past, line.world_size].add(line.rank)
    return {past for (past, world_size), found in ranks.items() if len(found) == world_size}


def _since_begin(placed: PlacedLine) -> int:
    line = placed.line
    return line.epoch * line.num_samples + line.last
