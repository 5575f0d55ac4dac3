"""The verdict on an epoch: the words of the lines that count, held against the plan's.

Of a line that does not fit, the plan and the data say which samples are lost or double.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardwise as sw
from shardwise.cli.legs import PlacedLine
from shardwise.cli.lineage import Stretch
from shardwise.cli.output import format_count
from shardwise.plan import Plan
from shardwise.plan.coverage_line import CoverageLine
from shardwise.plan.id_word import IdWord, rank_ids
from shardwise.plan.sampler import sampler_from_spec
from shardwise.plan.tallied import MODULUS, Counted, Tallied

# A microsecond a sample is spent on finding it: 4 s of a line, and of all data.
_MAX_IDS = 4_000_000
_NUM_SHOWN = 5


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


def verdict_of(epoch: int, stretches: list[Stretch], data: sw.Dataset | None) -> EpochVerdict:
    """Add up the lines of an epoch's stretches; with the data, samples of a fault are named."""
    verdict = EpochVerdict(epoch, begin=stretches[0].first, reached=stretches[-1].last)
    ends: list[CoverageLine] = []
    for stretch in stretches:
        verdict.faults += stretch.faults
        verdict.notes += stretch.notes
        leg = stretch.leg
        verdict.num_samples = leg.line.num_samples
        verdict.is_once = leg.line.is_whole
        verdict.runs.append(leg.run)
        verdict.world_sizes.append(leg.line.world_size)
        for rank in range(leg.line.world_size):
            chain = leg.until(rank, stretch.last)
            for placed in chain:
                line = placed.line
                verdict.counted += line.counted
                verdict.planned += line.planned
                verdict.num_given += line.handed_out.count if line.is_given else 0
                if line.is_end:
                    ends.append(line)
            # Copies are held against the plan as well, and counted once.
            for placed in [*chain, *leg.copies(chain, stretch.last)]:
                verdict.used.append(placed)
                verdict.faults += _line_faults(placed, data)
        for placed, other in leg.doubled():
            verdict.used.append(other)
            verdict.faults.append(
                f"{other.place} covers positions of rank {other.line.rank} that {placed.place} "
                f"covers already ({_range(other.line)})"
            )
    if not verdict.faults and ends:
        _check_whole(verdict, ends)
    return verdict


def _line_faults(placed: PlacedLine, data: sw.Dataset | None) -> list[str]:
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
    told = ["give the data's URLS to see which samples"]
    if data is not None:
        told = _lost_samples(line, data)
    return [fault, *(f"    {each}" for each in told)]


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


def _lost_samples(line: CoverageLine, data: sw.Dataset) -> list[str]:
    """What can be said of the lost and double samples of a line that does not fit, in words."""
    try:
        ids, word = _planned_ids(line, data)
    except ValueError as error:
        return [f"which samples can't be told: {error}"]
    if named := list(_named(line, ids, word, data)):
        return named
    shown = "; ".join(data.describe(i) for i in ids[:_NUM_SHOWN].tolist())
    return [f"among the {len(ids)} samples of the plan, which begin with {shown}"]


def _planned_ids(line: CoverageLine, data: sw.Dataset) -> tuple[NDArray[np.int64], IdWord]:
    """The samples that the plan gives to a line, and the key of their words.

    Raises:
        ValueError: the line is not of this data, or of no plan that can be made anew.
    """
    if line.fingerprint != data.fingerprint:
        raise ValueError(
            f"the line is of the fingerprint {line.fingerprint}, this data has {data.fingerprint}"
        )
    sampler = sampler_from_spec(line.order, data.shard_sizes)
    if sampler is None:
        raise ValueError(f"an order {str(line.order.get('sampler'))!r} can't be made anew")
    plan = Plan(
        len(data),
        batch_size=line.batch_size,
        world_size=line.world_size,
        remainder=line.remainder,  # type: ignore[arg-type] # the plan checks it
        sampler=sampler,
        start=line.begin,
    )
    size = plan.global_batch_size
    first, last = (line.first - line.begin) // size, -((line.begin - line.last) // size)
    steps = range(first, min(last, plan.num_steps))
    ids = rank_ids(plan, line.epoch, steps, line.rank) if steps else np.empty(0, np.int64)
    word = IdWord(line.fingerprint, line.epoch)
    if len(ids) > _MAX_IDS or Tallied(len(ids), word.of(ids)) != line.planned:
        raise ValueError("the plan gives other ones to this line")
    return ids, word


def _named(
    line: CoverageLine, ids: NDArray[np.int64], word: IdWord, data: sw.Dataset
) -> Iterator[str]:
    """The one sample that is lost, double or foreign, or the two of which one is each."""
    lacking = line.planned - line.counted.planned
    missing, balance = lacking.word, -lacking.count
    mine = dict(zip(word.powers(ids), ids.tolist(), strict=True))
    if balance == -1 and missing in mine:
        yield f"lost: {data.describe(mine[missing])}"
    elif balance == 1:
        extra = -missing % MODULUS
        if extra in mine:
            yield f"twice: {data.describe(mine[extra])}"
        elif (other := _everywhere(word, data).get(extra)) is not None:
            yield f"of another rank or step: {data.describe(other)}"
    elif balance == 0:
        for others in (mine, _everywhere(word, data)):
            for power, lost in mine.items():
                extra = (power - missing) % MODULUS
                if extra in others:
                    yield f"lost: {data.describe(lost)}"
                    kind = "twice" if others is mine else "of another rank or step"
                    yield f"{kind}: {data.describe(others[extra])}"
                    return


def _everywhere(word: IdWord, data: sw.Dataset) -> dict[int, int]:
    """All samples of the data by their words, if they are not too many."""
    if len(data) > _MAX_IDS:
        return {}
    ids = np.arange(len(data))
    return dict(zip(word.powers(ids), ids.tolist(), strict=True))
