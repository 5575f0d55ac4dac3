"""Which segments of a training count: from its last position back to its first.

The last segment counts as far as all its ranks reached. Its run says of which run it loaded a
state: that one counts up to there, and so on. Where a run does not say so, it resumed from the
newest older run with a line there. Other lines were undone by going back to an older checkpoint,
or are of a training that was given up.

A training may change its order: a mixture may get other weights at a resume. Its lines are then of
two orders that have one past up to the resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.extensions.certify.runs import CLOCK_SKEW_S, Run, Segment, ranks_text


@dataclass(slots=True)
class Stretch:
    """The part of a segment that counts.

    Attributes:
        segment: the segment.
        last: the position up to which it counts.
        faults, notes: why it is not complete, and facts that explain it, in words.
    """

    segment: Segment
    last: int
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        run = self.segment.run
        if run.doubt:
            self.faults.append(f"run {run.id}: {run.doubt}")

    @property
    def first(self) -> int:
        """The position that it counts from."""
        return self.segment.line.begin


@dataclass(frozen=True, slots=True)
class Joint:
    """Where another order goes on from an order: the segment before, its end, and the one after."""

    before: Segment
    last: int
    after: Segment


def lineage_of(runs: list[Run], joints: Sequence[Joint]) -> dict[int, list[Stretch]]:
    """The stretches that count, by epoch, each epoch's in order.

    The first one begins later than its epoch where it goes on from another order, or where no line
    says who read what was before.

    Args:
        runs: of one data and order.
        joints: where orders go on from one another.
    """
    counting = [run for run in runs if run.counts] or runs
    resumed = {run.resumed for run in counting}
    leaves = [run for run in counting if run.id not in resumed] or counting
    leaf = max(leaves, key=lambda run: run.began)
    left = [joint for joint in joints if joint.before.run in runs]
    newest = max(left, key=lambda joint: joint.after.run.began, default=None)
    stretch: Stretch | None
    if newest is not None and newest.after.run.began >= leaf.began:
        stretch = Stretch(newest.before, newest.last)
    else:
        stretch = _last_stretch(leaf, [run for run in runs if run.began > leaf.began])
    joined = {joint.after for joint in joints}
    lineage: dict[int, list[Stretch]] = {}
    while stretch is not None:
        segment = stretch.segment
        lineage.setdefault(segment.line.epoch, []).insert(0, stretch)
        earlier = _earlier(segment, runs)
        before = None
        if stretch.first and segment not in joined:
            before = _stretch_before(earlier, stretch)
        stretch = before or _epoch_before(earlier, segment)
    return dict(sorted(lineage.items()))


def _last_stretch(leaf: Run, newer: list[Run]) -> Stretch:
    """How far the newest run counts."""
    counting = [s for s in leaf.segments if s.reached > s.line.begin or s.is_torn()]
    segment = (counting or leaf.segments)[-1]
    stretch = Stretch(segment, segment.reached)
    _check_end(stretch)
    later = [other for other in leaf.segments if other.start > segment.start]
    for other in [*later, *(run.segments[0] for run in newer)]:
        epoch, begin = other.start
        stretch.notes.append(
            f"run {other.run.id} has lines from position {begin} of epoch {epoch} on of some ranks "
            "only, and counts for nothing"
        )
    return stretch


def _check_end(stretch: Stretch) -> None:
    """Note or report the ranks that have no line at the last position of a segment."""
    segment, furthest = stretch.segment, stretch.segment.furthest
    lacking = segment.lacking(furthest)
    if lacking and furthest == segment.line.num_samples:
        # Some ranks have ended the epoch: the others' lines are missing.
        stretch.last = furthest
        stretch.faults += _lacks(segment, lacking, furthest)
    elif gaps := segment.gaps():
        stretch.faults += _lacks(segment, gaps, furthest)
    elif lacking:
        stretch.notes.append(
            f"run {segment.run.id} has lines up to position {furthest}, but not of "
            f"{ranks_text(lacking)}: counted up to {stretch.last}, which all ranks have"
        )


def _earlier(segment: Segment, runs: list[Run]) -> list[Segment]:
    """The segments that another one may have gone on from, the likeliest first.

    Those of its own run and of the one whose state it loaded; where that is not known, of all runs
    that began before it by their clocks, and then of those that may have.
    """
    run = segment.run
    if run.resumed:
        parents = [other for other in runs if other.id == run.resumed]
    else:
        others = [other for other in runs if other is not run]
        parents = [other for other in others if other.began <= run.began + CLOCK_SKEW_S]
        parents.sort(key=lambda other: (other.began <= run.began, other.began), reverse=True)
    found = [each for other in (run, *parents) for each in reversed(other.segments)]
    return [other for other in found if other.start < segment.start]


def _epoch_before(earlier: list[Segment], later: Segment) -> Stretch | None:
    """What counts of the newest epoch before a segment, if there are lines of one."""
    own = [each for each in earlier if each.run is later.run]
    candidates = [s for s in own or earlier if s.line.epoch < later.line.epoch]
    if not candidates:
        return None
    epoch = max(each.line.epoch for each in candidates)
    of_epoch = [each for each in candidates if each.line.epoch == epoch]
    num_samples = of_epoch[0].line.num_samples
    ended = [each for each in of_epoch if each.furthest == num_samples]
    begun = [each for each in of_epoch if each.reached > each.line.begin or each.is_torn()]
    segment = (ended or begun or of_epoch)[0]
    stretch = Stretch(segment, segment.reached)
    if segment.furthest < num_samples:
        stretch.faults.append(
            f"it was left at position {segment.reached} of {num_samples}, and the training went on "
            f"with epoch {later.line.epoch}"
        )
    _check_end(stretch)
    return stretch


def _stretch_before(earlier: list[Segment], child: Stretch) -> Stretch | None:
    """What counts before a stretch that began in the middle of an epoch, if that is known."""
    position, epoch, run = child.first, child.segment.line.epoch, child.segment.run
    goes_on = f"run {run.id} goes on from position {position}"
    candidates = [s for s in earlier if s.line.epoch == epoch and s.furthest >= position]
    if not candidates:
        source = f", with a state of run {run.resumed}" if run.resumed else ""
        fault = f"positions 0 to {position}: no line says who read them, and {goes_on}{source}"
        child.faults.insert(0, fault)
        return None
    segment = candidates[0]
    stretch = Stretch(segment, position)
    if lacking := segment.lacking(position):
        stretch.faults += _lacks(segment, lacking, position)
        stretch.faults[-1] += f", where {goes_on}: call state_dict() on every rank at a checkpoint"
    return stretch


def _lacks(segment: Segment, ranks: list[int], position: int) -> list[str]:
    """For each rank what it has in place of lines up to a position."""
    line, size = segment.line, segment.num_processes
    faults = []
    for rank in ranks[:8]:
        passes = segment.passes.get(rank, [])
        text = "has no line at all"
        if passes:
            short = min(passes, key=lambda each: position in each.ends)
            before = max((end for end in short.ends if end < position), default=line.begin)
            then = f", then from {short.gap[0]} to {short.gap[1]}" if short.gap else ""
            text = f"has lines up to position {before}{then}, and none that ends at {position}"
            if not short.ends:
                text = f"has no line from position {before} on{then}"
            elif len(passes) < size:
                text = f"has lines of {len(passes)} of {size} processes"
        faults.append(f"run {segment.run.id}, rank {rank} of {line.world_size} {text}")
    if len(ranks) > 8:
        faults.append(f"run {segment.run.id}: neither do those of {ranks_text(ranks[8:])}")
    return faults


def joints_of(orders: Sequence[list[Run]]) -> list[Joint]:
    """Where runs of one order went on from another order: their pasts are equal."""
    joints = []
    for number, runs in enumerate(orders):
        others = [run for n, other in enumerate(orders) if n != number for run in other]
        for after in (run.segments[0] for run in runs if run.segments[0].line.begin_past):
            past = after.line.begin_past
            since = int(past.split()[0])
            parents = [o for o in others if not after.run.resumed or o.id == after.run.resumed]
            found = [
                Joint(segment, last, after)
                for run in sorted(parents, key=lambda run: run.began, reverse=True)
                for segment in run.segments
                for last in [since - segment.line.epoch * segment.line.num_samples]
                if _has_past(segment, last, past)
            ]
            joints += found[:1]
    return joints


def _has_past(segment: Segment, last: int, past: str) -> bool:
    """Whether all ranks have a line that ends there, with this past."""
    if segment.line.begin >= last or segment.lacking(last):
        return False
    passes = [each for of_rank in segment.passes.values() for each in of_rank]
    return all(each.ends[last].past == past for each in passes)
