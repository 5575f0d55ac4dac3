"""The runs of a coverage directory, and their segments.

A run is one start of a training, on all of its ranks; loading a state starts another. Ranks know
their run by the id that a process group or a launcher gave all of them. Without one, each rank has
its own id: the n-th starts of all then belong together, if they ran at the same time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import add

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.certify.coverage_files import (
    NO_SUMS,
    Coverage,
    Pass,
    Process,
    describe_range,
)
from shardwise.plan.coverage_line import CoverageLine
from shardwise.plan.id_word import MODULUS, Tallied

# The clocks of machines differ: a run may resume another's state where it is still earlier.
CLOCK_SKEW_S = 10.0


@dataclass(slots=True)
class Ends:
    """A position at which lines end, over all ranks: which ranks, their pasts, and the sums.

    `ranks` counts the lines of each rank, uint32 `[ranks]`. `sums` are those of `End`; processes
    that share a rank are counted once, but for their lines. Excluded samples, and how many were
    removed, which all ranks have alike, are in `excluded`.
    """

    ranks: NDArray[np.uint32]
    pasts: set[str] = field(default_factory=set)
    sums: tuple[int, ...] = NO_SUMS
    excluded: set[tuple[Tallied, int]] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Segment:
    """The reads of all ranks of a run from one position of an epoch on, summed up over ranks.

    Attributes:
        line: any line, for what they all have in common: epoch, start, world size, data.
        ranks: the processes with lines of each rank, uint32 `[ranks]`: those of a group that holds
            one model between them (tensor parallel) get equal batches.
        gaps: ranks that lack lines between others.
        steps_skipped, faults: of each skip and fault the first position, and words.
        whole: samples dropped, and all samples of the epoch, of lines that ended it.
    """

    run: Run
    line: CoverageLine
    ranks: NDArray[np.uint32]
    ends: dict[int, Ends] = field(default_factory=dict)
    furthest: int = 0
    gaps: set[int] = field(default_factory=set)
    steps_skipped: dict[tuple[int, str], None] = field(default_factory=dict)
    faults: list[tuple[int, str]] = field(default_factory=list)
    whole: set[tuple[Tallied, Tallied | None]] = field(default_factory=set)

    def add(self, each: Pass) -> None:
        """Add the pass of a process."""
        line = each.line
        self.ranks[line.rank] += 1
        self.furthest = max(self.furthest, each.furthest)
        if each.furthest > each.reached:
            self.gaps.add(line.rank)
        for position, end in each.ends.items():
            if position not in self.ends:
                self.ends[position] = Ends(np.zeros_like(self.ranks))
            ends = self.ends[position]
            is_new = not ends.ranks[line.rank]
            ends.ranks[line.rank] += 1
            ends.pasts.add(end.past)
            sums = end.sums if is_new else (*NO_SUMS[1:], end.sums[-1])
            count, word, removed = end.sums[10:13]
            ends.excluded.add((Tallied(count, word % MODULUS), removed))
            ends.sums = tuple(map(add, ends.sums, (*sums[:10], 0, 0, 0, *sums[13:])))
        self.steps_skipped |= dict.fromkeys(each.steps_skipped)
        if each.whole is not None:
            self.whole.add(each.whole)
        who = f"run {self.run.id}, rank {line.rank} of {line.world_size}"
        self.faults += [
            (first, f"{who}, {describe_range(line, first, last)}: not the samples of the plan")
            for first, last in each.wrong
        ]

    def add_repeated(self, each: Pass) -> None:
        """Report the positions of a pass that its process had returned already."""
        assert each.repeats is not None
        line, (number, last) = each.line, each.repeats
        text = (
            f"run {self.run.id}, rank {line.rank} of {line.world_size}: positions {line.begin} to "
            f"{last} were handed out in pass {number} and again in pass {line.number}, and no "
            "state was loaded: set_epoch() named an epoch that was over, or a loop was left and "
            "begun anew"
        )
        self.faults.append((-1, text))

    @property
    def start(self) -> tuple[int, int]:
        """Epoch and position."""
        return self.line.epoch, self.line.begin

    @property
    def reached(self) -> int:
        """The last position at which every process has a line that ends; else the start."""
        ends = sorted(self.ends, reverse=True)
        return next((end for end in ends if not self.lacking(end)), self.line.begin)

    def lacking(self, position: int) -> list[int]:
        """The ranks without a line that ends at a position, in one of their processes."""
        ranks = self.ends[position].ranks if position in self.ends else np.zeros_like(self.ranks)
        return np.flatnonzero(ranks < self.ranks.max()).tolist()

    def torn(self) -> list[int]:
        """The ranks that lack lines, which no kill explains: others ended the epoch, or a gap."""
        end = self.line.num_samples
        return sorted(self.gaps | set(self.lacking(end) if self.furthest == end else ()))

    @property
    def counts(self) -> bool:
        """Whether all ranks have lines up to some position, or lack some that they must have."""
        return self.reached > self.line.begin or bool(self.torn())


@dataclass(slots=True, eq=False)
class Run:
    """One start of a training, with the name and clock of its lowest rank; segments by start.

    `doubt` is the reason, in words, why its ranks may be those of several runs, or "".
    """

    id: str
    resumed: str
    began: float
    doubt: str
    segments: list[Segment]


def _read_run(coverage: Coverage, ranks: dict[int, list[Process]], doubt: str = "") -> Run:
    lowest = ranks[min(ranks)]
    line = lowest[0].line
    run = Run(line.run, line.resumed, min(process.began for process in lowest), doubt, [])
    segments: dict[object, Segment] = {}
    for process in chain.from_iterable(ranks[rank] for rank in sorted(ranks)):
        starts = set()
        for each in coverage.passes(process):
            key = _start_of(each.line)
            if key not in segments:
                counts = np.zeros(each.line.world_size, np.uint32)
                segments[key] = Segment(run, each.line, counts)
            segment = segments[key]
            if each.repeats is not None:
                segment.add_repeated(each)
            # The first pass from a position counts; later ones are repeats.
            if key not in starts:
                starts.add(key)
                segment.add(each)
    run.segments = sorted(segments.values(), key=lambda segment: segment.start)
    return run


def _start_of(line: CoverageLine) -> tuple[object, ...]:
    shape = (line.world_size, line.batch_size, line.remainder, line.num_samples)
    return (line.epoch, line.begin, *shape)


def read_runs(coverage: Coverage, processes: Iterable[Process]) -> list[Run]:
    """Read the files of processes of one data and order: their runs."""
    shared: dict[str, dict[int, list[Process]]] = defaultdict(lambda: defaultdict(list))
    alone: dict[object, dict[int, list[Process]]] = defaultdict(lambda: defaultdict(list))
    for process in processes:
        line = process.line
        if line.is_shared or line.world_size == 1:
            shared[line.run][line.rank].append(process)
        else:
            alone[*_start_of(line), line.resumed][line.rank].append(process)
    runs = [_read_run(coverage, ranks) for ranks in shared.values()]
    return runs + [run for ranks in alone.values() for run in _match_processes(coverage, ranks)]


def _match_processes(coverage: Coverage, ranks: dict[int, list[Process]]) -> list[Run]:
    """Runs of ranks without an id in common that started at one position, the newest first."""
    for processes in ranks.values():
        processes.sort(key=lambda process: process.began)
    runs = []
    while ranks:
        counts = {rank: len(processes) for rank, processes in ranks.items()}
        began = max(processes[-1].began for processes in ranks.values())
        # A process that ended long before that is of an earlier run.
        newest = {
            rank: processes.pop()
            for rank, processes in ranks.items()
            if processes[-1].written >= began - CLOCK_SKEW_S
        }
        ranks = {rank: processes for rank, processes in ranks.items() if processes}
        first = min(process.began for process in newest.values())
        older = [process.written for processes in ranks.values() for process in processes]
        is_apart = (
            began <= min(p.written for p in newest.values()) and max(older, default=0) <= first
        )
        doubt = ""
        is_full = len(newest) == newest[min(newest)].line.world_size
        if is_full and len(set(counts.values())) > 1 and not is_apart:
            doubt = (
                "can't tell which lines are of one run: ranks were started from this position "
                f"{min(counts.values())} to {max(counts.values())} times, and have no id in "
                "common; call init_process_group, or start them with srun or torchrun --rdzv-id"
            )
        of_run = {rank: [process] for rank, process in newest.items()}
        runs.append(_read_run(coverage, of_run, doubt))
    return runs


def by_order(processes: Iterable[Process]) -> list[list[Process]]:
    """The processes of each data and order."""
    orders: dict[tuple[str, str], list[Process]] = defaultdict(list)
    for process in processes:
        order = json.dumps(process.line.order, sort_keys=True)
        orders[process.line.fingerprint, order].append(process)
    return list(orders.values())


def runs_at_once(processes: Iterable[Process]) -> list[str]:
    """Runs of one order that were at work at the same time on one rank, in words."""
    times: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for process in processes:
        times[process.line.rank][process.line.run] += [process.began, process.written]
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, runs in sorted(times.items()):
        spans = sorted((min(span), max(span), run) for run, span in runs.items())
        # If any two overlap, two neighbours do.
        for (_, written, one), (began, _, other) in pairwise(spans):
            if began < written - CLOCK_SKEW_S:
                ranks[one, other].append(rank)
    return [
        f"runs {one} and {other} were under way at the same time on {ranks_text(of)}: give each "
        "job and each loader a coverage directory of its own"
        for (one, other), of in ranks.items()
    ]


def ranks_text(ranks: list[int]) -> str:
    """Ranks in words: the first eight."""
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
