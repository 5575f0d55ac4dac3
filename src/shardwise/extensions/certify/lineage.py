"""The segments of a training that count: from its last position back to its first.

The last segment counts as far as all its ranks reached. Its run names the run whose state
it loaded: that one counts up to there, and so on. A run that names none resumed from the
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
        faults: why it is not complete, in words.
    """

    segment: Segment
    last: int
    faults: list[str] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The position that it counts from."""
        return self.segment.line.begin

    def require(self, ranks: list[int], position: int, why: str = "") -> None:
        """Report the ranks that must have lines up to a position."""
        run, line = self.segment.run, self.segment.line
        ends = self.segment.ends
        for rank in ranks[:8]:
            reached = max((at for at in ends if ends[at].ranks[rank]), default=line.begin)
            text = f"has no line that ends at {position}, and lines up to position {reached}"
            if reached == line.begin:
                has_lines = self.segment.ranks[rank]
                text = (
                    f"has no line from position {reached} on" if has_lines else "has no line at all"
                )
            elif position in ends and ends[position].ranks[rank]:
                text = "has lines of fewer processes than others"
            self.faults.append(f"run {run.id}, rank {rank} of {line.world_size} {text}{why}")
        if len(ranks) > 8:
            self.faults.append(f"run {run.id}: neither do those of {ranks_text(ranks[8:])}")


def lineage_of(runs: list[Run], others: Sequence[Run]) -> dict[int, list[Stretch]]:
    """The stretches that count, by epoch, each epoch's in order.

    The first one starts later than its epoch if it continues from another order, or if no line
    shows who read the samples before it.

    Args:
        runs: of one data and order.
        others: the runs of the other ones.
    """
    counting = [run for run in runs if any(each.counts for each in run.segments)] or runs
    resumed = {run.resumed for run in counting}
    leaves = [run for run in counting if run.id not in resumed] or counting
    leaf = max(leaves, key=lambda run: run.began)
    stretch: Stretch | None = _up_to_end(leaf.segments)
    newest = leaf.began
    for run in others:
        left = _before_other_order(run, runs)
        if left is not None and run.began >= newest:
            stretch, newest = left, run.began
    lineage: dict[int, list[Stretch]] = {}
    while stretch is not None:
        segment = stretch.segment
        if segment.run.doubt:
            stretch.faults.append(f"run {segment.run.id}: {segment.run.doubt}")
        lineage.setdefault(segment.line.epoch, []).insert(0, stretch)
        earlier = _earlier(segment, runs)
        is_start = segment is segment.run.segments[0]
        is_joined = is_start and _before_other_order(segment.run, others) is not None
        before = _stretch_before(earlier, stretch) if stretch.first and not is_joined else None
        stretch = before or _epoch_before(earlier, segment)
    return dict(sorted(lineage.items()))


def _before_other_order(run: Run, others: Sequence[Run]) -> Stretch | None:
    """The stretch of another order that a run continues: lines of all ranks with its past."""
    past = run.segments[0].line.begin_past
    parents = [each for each in others if past and run.resumed in ("", each.id)]
    for parent in sorted(parents, key=lambda each: each.began, reverse=True):
        for segment in parent.segments:
            last = int(past.split()[0]) - segment.line.epoch * segment.line.num_samples
            if not segment.lacking(last) and segment.ends[last].pasts == {past}:
                return Stretch(segment, last)
    return None


def _up_to_end(segments: list[Segment]) -> Stretch:
    """The last segment that counts, as far as it was read, and the ranks without lines there."""
    segment = ([each for each in segments if each.counts] or segments)[-1]
    stretch = Stretch(segment, segment.reached)
    if torn := segment.torn():
        if segment.furthest == segment.line.num_samples:
            stretch.last = segment.furthest
        stretch.require(torn, segment.furthest)
    return stretch


def _earlier(segment: Segment, runs: list[Run]) -> list[Segment]:
    """The segments that another one may have continued from, the likeliest last.

    In order: segments of the run whose state it loaded, or if that is unknown, of runs that may
    have started before it, then of runs that did by their clocks; last, those of its run.
    """
    run = segment.run
    if run.resumed:
        parents = [other for other in runs if other.id == run.resumed]
    else:
        others = [other for other in runs if other is not run]
        parents = [other for other in others if other.began <= run.began + CLOCK_SKEW_S]
        parents.sort(key=lambda other: (other.began <= run.began, other.began))
    found = [each for other in (*parents, run) for each in other.segments]
    return [each for each in found if each.start < segment.start]


def _epoch_before(earlier: list[Segment], later: Segment) -> Stretch | None:
    """The stretch that counts in the newest epoch before a segment's; None without lines of one."""
    before = [each for each in earlier if each.line.epoch < later.line.epoch]
    before = [each for each in before if each.run is later.run] or before
    epoch = max((each.line.epoch for each in before), default=0)
    of_epoch = [each for each in before if each.line.epoch == epoch]
    if not of_epoch:
        return None
    ended = [each for each in of_epoch if each.furthest == each.line.num_samples]
    stretch = _up_to_end(ended or of_epoch)
    if not ended:
        stretch.faults.append(
            f"it was left at position {stretch.last} of {of_epoch[0].line.num_samples}, and the "
            f"training went on with epoch {later.line.epoch}"
        )
    return stretch


def _stretch_before(earlier: list[Segment], child: Stretch) -> Stretch | None:
    """The stretch before one that started in the middle of an epoch; None if it is unknown."""
    position, epoch, run = child.first, child.segment.line.epoch, child.segment.run
    goes_on = f"run {run.id} goes on from position {position}"
    candidates = [s for s in earlier if s.line.epoch == epoch and s.furthest >= position]
    if not candidates:
        source = f", with a state of run {run.resumed}" if run.resumed else ""
        fault = f"positions 0 to {position}: no line says who read them, and {goes_on}{source}"
        child.faults.insert(0, fault)
        return None
    stretch = Stretch(candidates[-1], position)
    why = f", where {goes_on}: call state_dict() on every rank at a checkpoint"
    stretch.require(candidates[-1].lacking(position), position, why)
    return stretch
