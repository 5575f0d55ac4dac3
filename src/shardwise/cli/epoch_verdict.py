"""The verdict on an epoch: the words of the lines that count, held against the plan's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardwise.cli.legs import PlacedLine
from shardwise.cli.lineage import Stretch
from shardwise.cli.output import format_count
from shardwise.plan.coverage_line import CoverageLine
from shardwise.plan.tallied import Counted, Tallied

__all__ = ["EpochVerdict", "verdict_of"]

# Says which samples of a line that does not fit are lost or double, if it can.
NameSamples = Callable[[CoverageLine], list[str]]


@dataclass(slots=True)
class EpochVerdict:
    """What the lines say of an epoch.

    Attributes:
        begin, reached: the positions from and up to which it was read in this order; `begin` is
            not 0 where it goes on from another order.
        counted, planned: what became of its samples, and what the plan gives.
        is_once: whether its samples are the data's, each once.
        num_given: of those handed out, indices that were given to torch's DataLoader.
        runs, world_sizes: the runs that count, and their numbers of ranks.
        faults, notes: what does not fit, and facts that explain it, in words.
        used: the lines that count, their copies of other processes, and doubled ones.
    """

    epoch: int
    num_samples: int = 0
    begin: int = 0
    reached: int = 0
    is_once: bool = True
    counted: Counted = field(default_factory=Counted)
    planned: Tallied = field(default_factory=Tallied)
    num_dropped: int = 0
    num_given: int = 0
    runs: list[str] = field(default_factory=list)
    world_sizes: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    used: list[PlacedLine] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The verdict in words."""
        noun = "samples" if self.is_once else "places of the order"
        count, total = format_count(self.counted.handed_out.count), format_count(self.num_samples)
        if self.faults:
            return f"epoch {self.epoch}: NOT every one of {total} {noun} exactly once"
        counted = self.counted
        left = counted.skipped.count + counted.replaced.count + self.num_dropped
        if self.reached < self.num_samples:
            reached = format_count(self.reached)
            first = f"from position {format_count(self.begin)} " if self.begin else ""
            text = f"{count} {noun} exactly once, {first}up to position {reached} of {total} so far"
        elif self.begin:
            begin = format_count(self.begin)
            text = f"{count} {noun} exactly once, from position {begin} of {total} on"
        elif left:
            text = f"{count} of {total} {noun} exactly once"
        else:
            text = f"every one of {total} {noun} exactly once"
        remarks = counted.remarks(num_dropped=self.num_dropped, num_given=self.num_given, spec=",")
        return f"epoch {self.epoch}: {', '.join([text, *remarks])}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "epoch": self.epoch,
            "ok": not self.faults,
            "is_complete": self.reached == self.num_samples,
            "verdict": self.text,
            "num_samples": self.num_samples,
            "begin": self.begin,
            "reached": self.reached,
            "handed_out": self.counted.handed_out.count,
            "word": f"{self.counted.handed_out.word:016x}",
            "skipped": self.counted.skipped.count,
            "replaced": self.counted.replaced.count,
            "padded": self.counted.num_padded,
            "dropped": self.num_dropped,
            "given": self.num_given,
            "runs": self.runs,
            "world_sizes": self.world_sizes,
            "faults": self.faults,
            "notes": self.notes,
        }


def verdict_of(
    epoch: int, stretches: list[Stretch], name_samples: NameSamples | None
) -> EpochVerdict:
    """Add up the lines of an epoch's stretches."""
    verdict = EpochVerdict(epoch, reached=stretches[-1].last)
    ends: list[CoverageLine] = []
    for stretch in stretches:
        verdict.faults += stretch.faults
        verdict.notes += stretch.notes
        leg = stretch.leg
        if leg is None:
            verdict.begin = stretch.last
            continue
        verdict.num_samples = leg.line.num_samples
        verdict.is_once = leg.line.is_whole
        verdict.runs.append(leg.run)
        verdict.world_sizes.append(leg.line.world_size)
        for rank in range(leg.line.world_size):
            chain = _counting(stretch, rank)
            for placed in chain:
                _add(verdict, placed.line)
                if placed.line.is_end:
                    ends.append(placed.line)
            # Copies are held against the plan as well, and counted once.
            for placed in [*chain, *leg.copies(chain, stretch.last)]:
                verdict.used.append(placed)
                verdict.faults += _line_faults(placed, name_samples)
        for rank_passes in leg.passes.values():
            for placed, other in (pair for each in rank_passes for pair in each.twice()):
                verdict.used.append(other)
                verdict.faults.append(
                    f"{other.place} covers positions of rank {other.line.rank} that "
                    f"{placed.place} covers already ({_range(other.line)})"
                )
    if not verdict.faults and ends:
        _check_whole(verdict, ends)
    return verdict


def _counting(stretch: Stretch, rank: int) -> list[PlacedLine]:
    """A rank's lines that count; where it has none that end in the right place, those before."""
    leg = stretch.leg
    assert leg is not None
    chain = leg.until(rank, stretch.last)
    if chain is not None:
        return chain
    passes = leg.passes.get(rank, [])
    return [p for p in passes[0].chain() if p.line.last <= stretch.last] if passes else []


def _add(verdict: EpochVerdict, line: CoverageLine) -> None:
    """Count a line."""
    verdict.counted += line.counted
    verdict.planned += line.planned
    verdict.num_given += line.handed_out.count if line.is_given else 0


def _line_faults(placed: PlacedLine, name_samples: NameSamples | None) -> list[str]:
    """What differs between a line and its part of the plan, in words."""
    line = placed.line
    got = line.counted.planned
    if got == line.planned:
        return []
    fault = (
        f"run {line.run}, rank {line.rank} of {line.world_size}, {_range(line)} ({placed.place}): "
        f"{got.count} samples for {line.planned.count} of the plan"
    )
    if got.count == line.planned.count:
        fault += ", but not the same ones"
    without = ["    give the data's URLS to see which samples"]
    return [fault, *(name_samples(line) if name_samples else without)]


def _check_whole(verdict: EpochVerdict, ends: list[CoverageLine]) -> None:
    """Hold the sum of an epoch that ended against all of its samples."""
    said = {(line.expected, line.dropped) for line in ends}
    if len(said) > 1:
        verdict.faults.append(
            "the ranks do not agree on what the epoch has, or leaves out at its end"
        )
        return
    [(expected, dropped)] = said
    verdict.num_dropped = dropped.count
    whole = verdict.planned + dropped
    # Orders without a closed form are held against their number of places alone.
    if not verdict.begin and (
        whole.count != verdict.num_samples if expected is None else whole != expected
    ):
        total = verdict.num_samples if expected is None else expected.count
        verdict.faults.append(
            f"the ranks' parts of the plan do not add up to the epoch: {whole.count} samples for "
            f"{total}, or not the same ones; each line fits by itself, so a rank's lines "
            "are those of another rank, or not of this data"
        )


def _range(line: CoverageLine) -> str:
    return f"epoch {line.epoch}, positions {line.first} to {line.last}"
