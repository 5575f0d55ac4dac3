"""The runs of a coverage directory, and their segments.

A run is one start of a training, on all of its ranks; loading a state starts another. Ranks know
their run by the id that a process group or a launcher gave all of them. Without one, each rank has
an id of its own: their n-th starts then belong together, where they were at work at the same time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from shardwise.extensions.certify.coverage_files import Pass, Process
from shardwise.plan.coverage_line import CoverageLine

# The clocks of machines differ: a run may resume another's state where it is still earlier.
CLOCK_SKEW_S = 10.0


@dataclass(slots=True, eq=False)
class Segment:
    """What all ranks of a run read from one position of an epoch on.

    Attributes:
        run: the run.
        line: any line, for what they all have in common: epoch, begin, world size, data.
        passes: by rank, of each process that has the rank: those of a group that holds one model
            between them (tensor parallel) get equal batches.
    """

    run: Run
    line: CoverageLine
    passes: dict[int, list[Pass]] = field(default_factory=dict)

    @property
    def start(self) -> tuple[int, int]:
        """Epoch and position."""
        return self.line.epoch, self.line.begin

    @property
    def all_passes(self) -> list[Pass]:
        """The passes of all ranks."""
        return [each for _, passes in sorted(self.passes.items()) for each in passes]

    @property
    def furthest(self) -> int:
        """The last position that any line reaches."""
        return max(each.furthest for each in self.all_passes)

    @property
    def reached(self) -> int:
        """The last position at which every process has a line that ends; else the beginning."""
        common = set.intersection(*(set(each.ends) for each in self.all_passes))
        reached = max(common, default=self.line.begin)
        return self.line.begin if self.lacking(reached) else reached

    def lacking(self, position: int) -> list[int]:
        """The ranks without a line that ends at a position, in one of their processes."""
        size = max(map(len, self.passes.values()))
        return [
            rank
            for rank in range(self.line.world_size)
            if len([p for p in self.passes.get(rank, ()) if position in p.ends]) < size
        ]

    def torn(self) -> list[int]:
        """The ranks that lack lines, which no kill explains: others ended the epoch, or a gap."""
        end, furthest = self.line.num_samples, self.furthest
        gaps = {each.line.rank for each in self.all_passes if each.furthest > each.reached}
        return sorted(gaps | set(self.lacking(end) if furthest == end else ()))

    @property
    def counts(self) -> bool:
        """Whether all ranks have lines up to some position, or lack some that they must have."""
        return self.reached > self.line.begin or bool(self.torn())


@dataclass(slots=True, eq=False)
class Run:
    """One start of a training.

    Attributes:
        id: its name; of its lowest rank where each rank has one of its own.
        resumed: the id of the run whose state it loaded; "" where that is not known.
        began: when it began, by the clock of its lowest rank.
        doubt: why its ranks may be those of several runs, in words; "" where they are not.
        segments: by start.
    """

    id: str
    resumed: str
    began: float
    doubt: str
    segments: list[Segment]


def _make_run(ranks: dict[int, list[Process]], doubt: str = "") -> Run:
    """A run of these processes of each rank."""
    lowest = ranks[min(ranks)]
    line = lowest[0].line
    run = Run(line.run, line.resumed, min(process.began for process in lowest), doubt, [])
    segments: dict[object, Segment] = {}
    for rank, processes in ranks.items():
        for process in processes:
            # Of passes from one position, the last one counts.
            own = {_start_of(each.line): each for each in process.passes.values()}
            for key, each in own.items():
                segment = segments.setdefault(key, Segment(run, each.line))
                segment.passes.setdefault(rank, []).append(each)
    run.segments = sorted(segments.values(), key=lambda segment: segment.start)
    return run


def _start_of(line: CoverageLine) -> tuple[object, ...]:
    shape = (line.world_size, line.batch_size, line.remainder, line.num_samples)
    return (line.epoch, line.begin, *shape)


def runs_of(processes: Iterable[Process]) -> list[Run]:
    """The runs of lines of one data and order."""
    shared: dict[str, dict[int, list[Process]]] = defaultdict(lambda: defaultdict(list))
    alone: dict[object, dict[int, list[Process]]] = defaultdict(lambda: defaultdict(list))
    for process in processes:
        line = process.line
        if line.is_shared or line.world_size == 1:
            shared[line.run][line.rank].append(process)
        else:
            alone[*_start_of(line), line.resumed][line.rank].append(process)
    runs = [_make_run(ranks) for ranks in shared.values()]
    return runs + [run for ranks in alone.values() for run in _matched(ranks)]


def _matched(ranks: dict[int, list[Process]]) -> list[Run]:
    """Runs of ranks without an id in common that began at one position, the newest first."""
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
        runs.append(_make_run({rank: [process] for rank, process in newest.items()}, doubt))
    return runs


def by_order(processes: Iterable[Process]) -> list[list[Process]]:
    """The processes of each data and order, those with the most lines first."""
    orders: dict[tuple[str, str], list[Process]] = defaultdict(list)
    for process in processes:
        order = json.dumps(process.line.order, sort_keys=True)
        orders[process.line.fingerprint, order].append(process)
    return sorted(orders.values(), key=lambda each: sum(p.num_lines for p in each), reverse=True)


def runs_at_once(processes: Iterable[Process]) -> list[str]:
    """Runs of one order that were at work at the same time on one rank, in words."""
    times: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for process in processes:
        times[process.line.rank][process.line.run] += [process.began, process.written]
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, runs in sorted(times.items()):
        spans = sorted((min(span), max(span), run) for run, span in runs.items())
        # Where any two overlap, two neighbours do.
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
