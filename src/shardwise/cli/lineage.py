"""Which legs of a training count: from its last position back to its first.

The last leg counts as far as all its ranks reached. It went on from the newest earlier leg whose
ranks all have a line that ends where it began; that one counts up to there, and so on. What other
lines say was undone by going back to an older checkpoint.

A training may change its order in its middle: a mixture may get other weights at a resume. Its
lines are then of two orders that have one past. A pass goes on from another order where the past at
its beginning is that at the end of a line there, of all ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardwise.cli.legs import Leg, PlacedLine, ranks_text


@dataclass(slots=True)
class Stretch:
    """The part of a leg that counts.

    Attributes:
        leg: the leg.
        first, last: the positions that it begins at, and counts up to.
        faults, notes: why it is not complete, and facts that explain it, in words.
    """

    leg: Leg
    first: int
    last: int
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def lineage_of(
    legs: list[Leg], *, joined: frozenset[str] = frozenset()
) -> dict[int, list[Stretch]]:
    """The stretches that count, by epoch, each epoch's in order.

    The first one begins later than its epoch where it goes on from another order, or where no line
    says who read what was before.

    Args:
        legs: of one data and order, the newest first.
        joined: the pasts at which an order goes on from another one.
    """
    lineage: dict[int, list[Stretch]] = {}
    rest = list(legs)
    later: Leg | None = None  # the leg that goes on in a later epoch
    while rest:
        stretch: Stretch | None = _last_stretch(rest, later)
        stretches: list[Stretch] = []
        while stretch is not None:
            stretches.insert(0, stretch)
            rest = _before(rest, stretch.leg)
            stretch = _stretch_before(rest, stretch, joined) if stretch.first else None
        later = stretches[-1].leg
        epoch = later.line.epoch
        lineage[epoch] = stretches
        rest = [leg for leg in rest if leg.line.epoch < epoch]
    return dict(sorted(lineage.items()))


def _before(legs: Iterable[Leg], child: Leg) -> list[Leg]:
    """The legs that another one may have gone on from: it began no later than that one's end."""
    return [leg for leg in legs if leg is not child and leg.began[0] <= child.began[1]]


def _last_stretch(legs: list[Leg], later: Leg | None) -> Stretch:
    """How far the newest leg counts in its epoch: it is the last one of that epoch."""
    epoch = legs[0].line.epoch if later is None else max(leg.line.epoch for leg in legs)
    of_epoch = [leg for leg in legs if leg.line.epoch == epoch]
    num_samples = of_epoch[0].line.num_samples
    # Where the training went on with the next epoch, this one was ended.
    whole = [leg for leg in of_epoch if not leg.lacking(num_samples)]
    begun = [leg for leg in of_epoch if leg.reached > leg.line.begin or leg.is_torn()]
    leg = (whole if later is not None and whole else begun or of_epoch)[0]
    reached, furthest = leg.reached, leg.furthest
    stretch = Stretch(leg, leg.line.begin, reached)
    if later is not None and furthest < num_samples:
        stretch.faults.append(
            f"it was left at position {reached} of {num_samples}, and the training went on with "
            f"epoch {later.line.epoch}"
        )
    lacking = leg.lacking(furthest)
    if lacking and furthest == num_samples:
        # Some ranks have ended the epoch: those of the others' lines are missing.
        stretch.last = furthest
        stretch.faults += _lacks(leg, lacking, furthest)
    elif gaps := leg.gaps():
        stretch.faults += _lacks(leg, gaps, furthest)
    elif lacking:
        stretch.notes.append(
            f"run {leg.run} has lines up to position {furthest}, but not of {ranks_text(lacking)}: "
            f"counted up to {reached}, which all ranks have"
        )
    skipped = [other for other in of_epoch[: of_epoch.index(leg)] if later is None]
    stretch.notes += [
        f"run {other.run} has lines from position {other.line.begin} on of some ranks only, and "
        "counts for nothing"
        for other in skipped
    ]
    return stretch


def _stretch_before(legs: list[Leg], child: Stretch, joined: frozenset[str]) -> Stretch | None:
    """What counts before a stretch that began in the middle of an epoch, if that is known."""
    position, epoch = child.first, child.leg.line.epoch
    candidates = [leg for leg in legs if leg.line.epoch == epoch and leg.line.begin < position]
    for leg in candidates:
        if not leg.lacking(position):
            return Stretch(leg, leg.line.begin, position)
    if child.leg.line.begin_past in joined:
        return None
    goes_on = f"run {child.leg.run} goes on from position {position}"
    candidates = [leg for leg in candidates if leg.furthest >= position]
    if not candidates:
        fault = f"positions 0 to {position}: no line says who read them, and {goes_on}"
        child.faults.insert(0, fault)
        return None
    # The leg with the most ranks that have a line up to there.
    leg = min(candidates, key=lambda each: len(each.lacking(position)))
    lacking = leg.lacking(position)
    faults = _lacks(leg, lacking, position)
    if not all(leg.ends[rank] for rank in lacking):
        faults[-1] += f", where {goes_on}"
    else:
        faults[-1] += f", where {goes_on}: call state_dict() on every rank at a checkpoint"
    return Stretch(leg, leg.line.begin, position, faults)


def _lacks(leg: Leg, ranks: list[int], position: int) -> list[str]:
    """For each rank what it has in place of lines up to a position."""
    faults = []
    for rank in ranks[:8]:
        ends = leg.ends[rank]
        before = max((end for end in ends if end < position), default=leg.line.begin)
        if rank not in leg.passes:
            text = "has no line at all"
        elif not ends:
            text = f"has no line from position {before} on{_next(leg, rank, before)}"
        else:
            text = f"has lines up to position {before}{_next(leg, rank, before)}"
            text += f", and none that ends at {position}"
        faults.append(f"run {leg.run}, rank {rank} of {leg.line.world_size} {text}")
    if len(ranks) > 8:
        faults.append(f"run {leg.run}: neither do those of {ranks_text(ranks[8:])}")
    return faults


def _next(leg: Leg, rank: int, position: int) -> str:
    """Where a rank's lines go on behind a position."""
    lines = [p.line for each in leg.passes[rank] for p in each if p.line.last > position]
    if not lines:
        return ""
    line = min(lines, key=lambda each: (each.first, each.last))
    return f", then from {line.first} to {line.last}"


def without_undone(
    orders: Sequence[Sequence[PlacedLine]],
) -> tuple[list[list[PlacedLine]], frozenset[str]]:
    """The lines of each order, without those behind the place where another one goes on.

    Also the pasts at which one order goes on from another.
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
