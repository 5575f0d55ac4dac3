"""The verdict on an epoch: the checksums of the lines that count, compared with the plan's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardwise.cli.output import format_count
from shardwise.extensions.certify.coverage_files import Pass, describe_range
from shardwise.extensions.certify.lineage import Stretch
from shardwise.plan.tallied import MODULUS, Counted, Tallied


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
        num_lines: the lines that count.
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
    num_lines: int = 0

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


def verdict_of(epoch: int, stretches: list[Stretch]) -> EpochVerdict:
    """Add up the lines of an epoch's stretches."""
    verdict = EpochVerdict(epoch, begin=stretches[0].first, reached=stretches[-1].last)
    ends: set[tuple[Tallied, Tallied | None]] = set()
    for stretch in stretches:
        verdict.faults += stretch.faults
        verdict.notes += stretch.notes
        segment, line = stretch.segment, stretch.segment.line
        verdict.num_samples = line.num_samples
        verdict.is_once = line.is_whole
        verdict.runs.append(segment.run.id)
        verdict.world_sizes.append(line.world_size)
        for _, passes in sorted(segment.passes.items()):
            # Other processes of the rank are compared with the plan as well, and counted once.
            _count(verdict, passes[0].sums(stretch.last))
            for each in passes:
                verdict.num_lines += each.sums(stretch.last)[-1]
                verdict.faults += _faults_of(each, stretch)
                if each.whole is not None and stretch.last == line.num_samples:
                    ends.add(each.whole)
    if not verdict.faults and ends:
        _check_whole(verdict, ends)
    return verdict


def _count(verdict: EpochVerdict, sums: tuple[int, ...]) -> None:
    """Add the sums of a pass."""
    done, skipped, replaced, planned = (
        Tallied(sums[at], sums[at + 1] % MODULUS) for at in (0, 2, 4, 6)
    )
    verdict.counted += Counted(done, skipped, replaced, sums[8])
    verdict.planned += planned
    verdict.num_given += sums[9]


def _faults_of(each: Pass, stretch: Stretch) -> list[str]:
    """What is wrong with the lines of a pass that count, in words."""
    line, run = each.line, stretch.segment.run
    faults = []
    for found in each.mismatches:
        if found.first >= stretch.last:
            continue
        fault = (
            f"run {run.id}, rank {line.rank} of {line.world_size}, "
            f"{describe_range(line, found.first, found.last)} ({found.place}): recorded "
            f"{found.num_recorded} samples, the plan has {found.num_planned}"
        )
        is_equal = found.num_recorded == found.num_planned
        faults.append(fault + (", but not the same ones" if is_equal else ""))
    if each.repeated is not None:
        number, last = each.repeated
        faults.append(
            f"run {run.id}, rank {line.rank}: positions {line.begin} to {last} were handed out in "
            f"pass {number} and again in pass {line.number}, and no state was loaded: set_epoch() "
            "named an epoch that was over, or a loop was left and begun anew"
        )
    return faults


def _check_whole(verdict: EpochVerdict, ends: set[tuple[Tallied, Tallied | None]]) -> None:
    """Compare the sum of an epoch that ended with all of its samples."""
    if len(ends) > 1:
        verdict.faults.append(
            "the ranks do not agree on what the epoch has, or leaves out at its end"
        )
        return
    [(dropped, expected)] = ends
    verdict.num_dropped = dropped.count
    whole = verdict.planned + dropped
    # Orders without a closed form are compared with their number of positions alone.
    if not verdict.begin and (
        whole.count != verdict.num_samples if expected is None else whole != expected
    ):
        total = verdict.num_samples if expected is None else expected.count
        verdict.faults.append(
            f"the ranks' parts of the plan do not add up to the epoch: {whole.count} samples for "
            f"{total}, or not the same ones; each line fits by itself, so a rank's lines "
            "are those of another rank, or not of this data"
        )
