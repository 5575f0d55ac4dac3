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
    def furthest(self) -> int:
        """The last position that any line reaches."""
        return max(each.furthest for passes in self.passes.values() for each in passes)

    @property
    def reached(self) -> int:
        """The last position at which every process has a line that ends; else the beginning."""
        ends = [each.ends.keys() for passes in self.passes.values() for each in passes]
        common = set(ends[0]).intersection(*ends[1:])
        is_full = len(ends) == self.num_processes * self.line.world_size
        return max(common, default=self.line.begin) if is_full else self.line.begin

    @property
    def num_processes(self) -> int:
        """How many processes a rank has: one, but for tensor parallel."""
        return max(map(len, self.passes.values()))

    def lacking(self, position: int) -> list[int]:
        """The ranks without a line that ends at a position, in one of their processes."""
        size = self.num_processes
        passes = ((rank, self.passes.get(rank, ())) for rank in range(self.line.world_size))
        return [
            rank
            for rank, each in passes
            if len(each) < size or any(position not in p.ends for p in each)
        ]

    def gaps(self) -> list[int]:
        """The ranks that have lines after positions of which they have none."""
        return sorted(r for r, passes in self.passes.items() if any(p.gap for p in passes))

    def is_torn(self) -> bool:
        """Whether ranks lack lines that no kill explains: others ended the epoch, or have gaps."""
        end = self.line.num_samples
        return bool(self.gaps()) or (self.furthest == end and bool(self.lacking(end)))


@dataclass(slots=True, eq=False)
class Run:
    """One start of a training.

    Attributes:
        id: its name; of its lowest rank where each rank has one of its own.
        resumed: the id of the run whose state it loaded; "" where that is not known.
        ranks: the processes of each rank.
        doubt: why its ranks may be those of several runs, in words; "" where they are not.
        segments: by start.
    """

    id: str
    resumed: str
    ranks: dict[int, list[Process]]
    doubt: str = ""
    segments: list[Segment] = field(init=False)

    def __post_init__(self) -> None:
        segments: dict[object, Segment] = {}
        for rank, processes in sorted(self.ranks.items()):
            for process in processes:
                own: dict[object, Pass] = {}
                for _, each in sorted(process.passes.items()):
                    line = each.line
                    shape = (line.world_size, line.batch_size, line.remainder)
                    own[line.epoch, line.begin, *shape] = each
                for key, each in own.items():
                    segment = segments.setdefault(key, Segment(self, each.line))
                    segment.passes.setdefault(rank, []).append(each)
        self.segments = sorted(segments.values(), key=lambda segment: segment.start)

    @property
    def began(self) -> float:
        """When it began, by the clock of its lowest rank."""
        return min(process.began for process in self.ranks[min(self.ranks)])

    @property
    def counts(self) -> bool:
        """Whether all ranks have lines up to some position, or lack some that they must have."""
        return any(s.reached > s.line.begin or s.is_torn() for s in self.segments)


def runs_of(processes: Iterable[Process]) -> list[Run]:
    """The runs of lines of one data and order."""
    shared: dict[str, dict[int, list[Process]]] = defaultdict(lambda: defaultdict(list))
    alone: dict[object, dict[int, list[Process]]] = defaultdict(lambda: defaultdict(list))
    for process in processes:
        line = process.first
        if line.is_shared or line.world_size == 1:
            shared[line.run][line.rank].append(process)
        else:
            shape = (line.world_size, line.batch_size, line.remainder)
            key = (*shape, line.epoch, line.begin, line.resumed)
            alone[key][line.rank].append(process)
    runs = [Run(run, ranks[min(ranks)][0].first.resumed, ranks) for run, ranks in shared.items()]
    return runs + [run for ranks in alone.values() for run in _matched(ranks)]


def _matched(ranks: dict[int, list[Process]]) -> list[Run]:
    """Runs of ranks without an id in common that began at one position, the newest first."""
    world_size = next(iter(ranks.values()))[0].first.world_size
    for processes in ranks.values():
        processes.sort(key=lambda process: process.began)
    runs = []
    while any(ranks.values()):
        counts = {rank: len(processes) for rank, processes in ranks.items() if processes}
        newest = {rank: ranks[rank][-1] for rank in counts}
        began = max(process.began for process in newest.values())
        # Who ended long before that is of an earlier run.
        newest = {r: p for r, p in newest.items() if p.written >= began - CLOCK_SKEW_S}
        for rank in newest:
            ranks[rank].pop()
        older = [process for processes in ranks.values() for process in processes]
        is_apart = began <= min(process.written for process in newest.values()) and all(
            process.written <= min(p.began for p in newest.values()) for process in older
        )
        doubt = ""
        if len(newest) == world_size and len(set(counts.values())) > 1 and not is_apart:
            most = max(counts, key=lambda rank: counts[rank])
            least = min(counts, key=lambda rank: counts[rank])
            doubt = (
                f"can't tell which lines are of one run: from this position on rank {most} was "
                f"started {counts[most]} times, rank {least} {counts[least]} times, and the ranks "
                "have no id in common; call init_process_group, or start them with srun or "
                "torchrun --rdzv-id"
            )
        line = newest[min(newest)].first
        runs.append(Run(line.run, line.resumed, {r: [p] for r, p in newest.items()}, doubt))
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
        line = process.first
        times[line.rank][line.run] += [process.began, process.written]
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, runs in sorted(times.items()):
        last, one = float("-inf"), ""
        for began, written, run in sorted((min(t), max(t), run) for run, t in runs.items()):
            if began < last - CLOCK_SKEW_S:
                ranks[one, run].append(rank)
            if written > last:
                last, one = written, run
    return [
        f"runs {one} and {other} were under way at the same time on {ranks_text(of)}: give each "
        "job and each loader a coverage directory of its own"
        for (one, other), of in ranks.items()
    ]


def ranks_text(ranks: list[int]) -> str:
    """Ranks in words: the first eight."""
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
