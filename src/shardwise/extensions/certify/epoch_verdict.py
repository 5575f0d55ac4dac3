"""The verdict on an epoch: the checksums of the lines that count, compared with the plan's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardwise.cli.output import format_count
from shardwise.extensions.certify.coverage_files import NO_SUMS
from shardwise.extensions.certify.lineage import Stretch
from shardwise.plan.id_word import MODULUS, Counted, Tallied


@dataclass(slots=True)
class EpochVerdict:
    """The verdict of the lines on an epoch.

    Attributes:
        begin, reached: the positions from and up to which it was read in this order; `begin` is
            not 0 where it continues from another order.
        counted, planned: what became of its samples, and what the plan gives.
        is_once: whether its samples are the data's, each once.
        num_given: samples returned as indices, to torch's DataLoader.
        excluded: samples that `exclude` left out, or that were removed (`num_removed`).
        runs, world_sizes, num_lines: those that count.
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
    excluded: Tallied = field(default_factory=Tallied)
    num_removed: int = 0
    steps_skipped: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    world_sizes: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    num_lines: int = 0

    @property
    def text(self) -> str:
        """The verdict in words."""
        noun = "samples" if self.is_once else "positions of the order"
        count, total = format_count(self.counted.handed_out.count), format_count(self.num_samples)
        if self.faults:
            return f"epoch {self.epoch}: NOT every one of {total} {noun} exactly once"
        counted = self.counted
        left = self.num_samples - counted.handed_out.count
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
        remarks = counted.remarks(
            num_dropped=self.num_dropped,
            num_given=self.num_given,
            num_excluded=self.excluded.count,
            num_removed=self.num_removed,
            steps_skipped=self.steps_skipped,
            spec=",",
        )
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
            "left_out": self.counted.left_out.count + self.excluded.count,
            "removed": self.num_removed,
            "steps_skipped": self.steps_skipped,
            "given": self.num_given,
            "runs": self.runs,
            "world_sizes": self.world_sizes,
            "faults": self.faults,
        }


def verdict_of(epoch: int, stretches: list[Stretch]) -> EpochVerdict:
    """Add up the lines of an epoch's stretches."""
    verdict = EpochVerdict(epoch, begin=stretches[0].first, reached=stretches[-1].last)
    ends: set[tuple[Tallied, Tallied | None]] = set()
    for stretch in stretches:
        verdict.faults += stretch.faults
        segment, line = stretch.segment, stretch.segment.line
        verdict.num_samples, verdict.is_once = line.num_samples, line.is_whole
        verdict.runs.append(segment.run.id)
        verdict.world_sizes.append(line.world_size)
        counting = segment.ends.get(stretch.last)
        sums = NO_SUMS if counting is None else counting.sums
        done, skipped, replaced, planned, left_out = (
            Tallied(sums[at], sums[at + 1] % MODULUS) for at in range(0, 10, 2)
        )
        verdict.counted += Counted(done, skipped, replaced, sums[13], left_out)
        verdict.planned += planned
        verdict.num_given += sums[14]
        verdict.num_lines += sums[15]
        skips = [text for first, text in segment.steps_skipped if first < stretch.last]
        verdict.steps_skipped += skips
        lists = {(Tallied(), 0)} if counting is None else counting.excluded
        excluded, removed = max(lists, key=lambda each: each[0].count)
        verdict.excluded, verdict.num_removed = (
            verdict.excluded + excluded, verdict.num_removed + removed
        )  # fmt: skip
        if len(lists) > 1:
            counts = sorted(each.count for each, _ in lists)
            verdict.faults.append(
                f"run {segment.run.id}: exclude= left out {counts[0]} samples on one rank and "
                f"{counts[-1]}, or other ones, on another: give all ranks the same list"
            )
        verdict.faults += [text for first, text in segment.faults if first < stretch.last]
        if stretch.last == line.num_samples:
            ends |= segment.whole
    if not verdict.faults and ends:
        _check_whole(verdict, ends)
    return verdict


def _check_whole(verdict: EpochVerdict, ends: set[tuple[Tallied, Tallied | None]]) -> None:
    """Compare the sum of an epoch that ended with all of its samples."""
    dropped, expected = ends.pop()
    verdict.num_dropped = dropped.count
    whole = verdict.planned + dropped + verdict.excluded
    # Orders without a closed form are compared with their number of positions alone.
    fits = whole.count == verdict.num_samples if expected is None else whole == expected
    if ends or not (fits or verdict.begin):
        total = verdict.num_samples if expected is None else expected.count
        verdict.faults.append(
            f"the ranks' parts of the plan do not add up to the epoch: {whole.count} samples for "
            f"{total}, or not the same ones; each line fits by itself, so a rank's lines "
            "are those of another rank, or not of this data"
        )
