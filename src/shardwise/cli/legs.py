"""The lines of a coverage directory, read and checked; and the legs of a training in them.

A leg has the passes of all ranks that began at one position, and says how far they reach.

What was trained is what a checkpoint kept. A leg counts up to the position where the next one
begins, and a position is reached where every rank has a line that ends there. A directory may also
have lines of two jobs, lines that were edited or moved by hand, and lines of a program that went
through positions twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from shardwise.cli.output import plural
from shardwise.errors import StorageError
from shardwise.plan.coverage_line import CoverageLine

Lines = list["PlacedLine"]

# What all lines of one pass have in common.
_OF_A_PASS = (
    "is_shared", "world_size", "batch_size", "remainder", "epoch", "begin", "num_samples",
    "fingerprint", "order",
)  # fmt: skip

# The clocks of machines differ: a run may go on with another's state where it is still earlier.
_CLOCK_SKEW_S = 10.0


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """A line, the name of its file, and which line of that it is, from 1 on."""

    line: CoverageLine
    file: str
    number: int

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"line {self.number} of {self.file}"


def read_coverage(directory: Path) -> tuple[list[PlacedLine], list[str], list[str]]:
    """Read all `*.jsonl` of a coverage directory.

    Returns:
        All lines that could be read; faults: those that could not, in words; and notes: lines that
        a kill cut short, which count for nothing.

    Raises:
        StorageError: it can't be read, or holds no such file.
    """
    lines: list[PlacedLine] = []
    faults: list[str] = []
    notes: list[str] = []
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".jsonl")
        for path in paths:
            for number, data in enumerate(path.read_bytes().splitlines(keepends=True), 1):
                place = f"line {number} of {path.name}"
                if not data.endswith(b"\n"):
                    notes.append(
                        f"{place} has no end: its process was killed while it wrote, and the line "
                        "counts for nothing"
                    )
                    continue
                try:
                    line = CoverageLine.from_text(data.decode())
                except ValueError as error:  # also of the decoding
                    faults.append(f"{place} can't be used: {error}")
                else:
                    lines.append(PlacedLine(line, path.name, number))
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise StorageError(f"the coverage directory {str(directory)!r}: {error}") from error
    if not paths:
        raise StorageError(
            f"{str(directory)!r} holds no coverage: there is no *.jsonl in it; ranks write such "
            "files with sw.DataLoader(..., coverage=DIR), at state_dict() and at an epoch's end"
        )
    if not (lines or faults):
        faults.append(f"{plural(len(paths), 'file')} without a whole line")
    return lines, faults, notes


def _chain(lines: Lines) -> Lines:
    """Of one pass, the lines that follow one another without a gap, from where it began."""
    chain: Lines = []
    position = lines[0].line.begin
    for placed in lines:
        if placed.line.first == position:
            chain.append(placed)
            position = placed.line.last
    return chain


class Leg:
    """The passes of all ranks that began at one position, in one run where that is known.

    Args:
        passes: for each rank the lines of its passes, the newest pass first, its lines by their
            first position.

    Attributes:
        line: any line, for what they all have in common: epoch, begin, world size, data.
        run: the run's name: of rank 0 where each rank has one of its own.
        began: when the first and the last of the passes began, in seconds since 1970.
        furthest: the last position that any line reaches.
        ends: for each rank the positions up to which its lines reach, without gaps.
        reached: the last position that all ranks reached; the beginning where there is none.
    """

    def __init__(self, passes: dict[int, list[Lines]]) -> None:
        self.passes = passes
        self._chains = {rank: list(map(_chain, of_rank)) for rank, of_rank in passes.items()}
        lines = [placed.line for of_rank in passes.values() for each in of_rank for placed in each]
        self.line = lines[0]
        self.run = passes[min(passes)][0][0].line.run
        self.began = min(line.began for line in lines), max(line.began for line in lines)
        self.furthest = max(line.last for line in lines)
        self.ends: dict[int, set[int]] = defaultdict(set)
        for rank, chains in self._chains.items():
            self.ends[rank] = {placed.line.last for chain in chains for placed in chain}
        common = set.intersection(*(self.ends[rank] for rank in range(self.line.world_size)))
        self.reached = max(common, default=self.line.begin)

    def until(self, rank: int, position: int) -> Lines:
        """A rank's lines from the beginning up to a position.

        Of the newest of its passes with a line that ends there; where there is none, of its newest
        pass those before.
        """
        chains = self._chains.get(rank, [[]])
        ending = (each for each in chains if any(p.line.last == position for p in each))
        return [p for p in next(ending, chains[0]) if p.line.last <= position]

    def copies(self, chain: Lines, position: int) -> Lines:
        """The lines up to a position of other processes that had a chain's rank in the same pass.

        Ranks of a group that holds one model between them (tensor parallel) get equal batches.
        """
        if not (chain and chain[0].line.is_shared):
            return []
        first = chain[0]
        return [
            placed
            for each in self._chains[first.line.rank]
            for placed in each
            if placed.file != first.file
            and placed.line.number == first.line.number
            and placed.line.last <= position
        ]

    def doubled(self) -> list[tuple[PlacedLine, PlacedLine]]:
        """Lines that cover positions which another line of their pass covers too, behind that."""
        found = []
        for lines in (each for of_rank in self.passes.values() for each in of_rank):
            last = lines[0]
            for placed in lines[1:]:
                if placed.line.first < last.line.last:
                    found.append((last, placed))
                if placed.line.last > last.line.last:
                    last = placed
        return found

    def lacking(self, position: int) -> list[int]:
        """The ranks without a line that ends at a position."""
        return [r for r in range(self.line.world_size) if position not in self.ends[r]]

    def gaps(self) -> list[int]:
        """The ranks that have lines behind positions of which they have none."""
        return [
            rank
            for rank, of_rank in sorted(self.passes.items())
            if max(placed.line.last for each in of_rank for placed in each)
            > max(self.ends[rank], default=self.line.begin)
        ]

    def is_torn(self) -> bool:
        """Whether ranks lack lines that no kill explains: others ended the epoch, or have gaps."""
        end = self.line.num_samples
        return bool(self.gaps()) or (self.furthest == end and bool(self.lacking(end)))


def legs_of(lines: Iterable[PlacedLine]) -> list[Leg]:
    """The legs of lines of one data and order, those that began last first."""
    passes: dict[tuple[object, ...], Lines] = defaultdict(list)
    for placed in lines:
        line = placed.line
        # Without a process group each rank has a run of its own: ranks belong together by where
        # they began, and in how large a world.
        run = line.run if line.is_shared else ""
        leg = (run, line.world_size, line.batch_size, line.remainder, line.epoch, line.begin)
        passes[leg, line.rank, line.run, line.number, line.began].append(placed)
    legs: dict[object, dict[int, list[Lines]]] = defaultdict(lambda: defaultdict(list))
    for (common, *_), each in passes.items():
        each.sort(key=lambda p: (p.line.first, p.line.last, p.file, p.number))
        legs[common][each[0].line.rank].append(each)
    for ranks in legs.values():
        for of_rank in ranks.values():
            of_rank.sort(key=lambda each: each[0].line.began, reverse=True)
    return sorted(map(Leg, legs.values()), key=lambda leg: leg.began[1], reverse=True)


def ranks_text(ranks: list[int]) -> str:
    """Ranks in words: the first eight."""
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def mixed_lines(lines: Iterable[PlacedLine]) -> list[str]:
    """Files with lines of several data or orders, and passes whose lines contradict each other."""
    orders: dict[str, list[tuple[str, object]]] = defaultdict(list)
    passes: dict[object, PlacedLine] = {}
    differing = {}
    for placed in lines:
        line = placed.line
        kind = (line.fingerprint, line.order)
        if kind not in orders[placed.file]:
            orders[placed.file].append(kind)
        key = (placed.file, line.run, line.rank, line.number, line.began)
        first = passes.setdefault(key, placed)
        names = [n for n in _OF_A_PASS if getattr(line, n) != getattr(first.line, n)]
        if names:
            differing[key] = (
                f"lines {first.number} and {placed.number} of {placed.file} are of one pass and "
                f"differ in {', '.join(names)}: one of them was changed, or is of another file"
            )
    return [
        f"{file} has lines of {len(kinds)} different data or orders: a loader writes of one alone"
        for file, kinds in sorted(orders.items())
        if len(kinds) > 1
    ] + list(differing.values())


def runs_at_once(lines: Iterable[PlacedLine]) -> list[str]:
    """Runs of one order that were under way at the same time, by when their passes began."""
    times: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for placed in lines:
        times[placed.line.rank][placed.line.run].append(placed.line.began)
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, runs in sorted(times.items()):
        spans = sorted((min(began), max(began), run) for run, began in runs.items())
        for (_, last, one), (first, _, other) in pairwise(spans):
            if first < last - _CLOCK_SKEW_S:
                ranks[one, other].append(rank)
    return [
        f"runs {one} and {other} were under way at the same time on {ranks_text(of)}: give each "
        "job and each loader a coverage directory of its own"
        for (one, other), of in ranks.items()
    ]


def repeated_positions(lines: Iterable[PlacedLine], used: Iterable[PlacedLine]) -> list[str]:
    """Positions that a loader handed out twice in one epoch, without a state loaded in between.

    A loader that goes back to a checkpoint begins another file.

    Args:
        lines: of one data and order.
        used: those of one epoch that count.
    """
    ends: dict[object, dict[int, int]] = defaultdict(dict)
    for placed in lines:
        of_file = ends[_loader_of(placed)]
        number = placed.line.number
        of_file[number] = max(placed.line.last, of_file.get(number, 0))
    ranks: dict[tuple[str, int, int, int, int], set[int]] = defaultdict(set)
    for placed in used:
        line = placed.line
        for number, last in ends[_loader_of(placed)].items():
            if number < line.number and last > line.begin:
                ranks[line.run, line.begin, last, number, line.number].add(line.rank)
    return [
        f"run {run}, {ranks_text(sorted(of))}: positions {begin} to {last} were handed out in pass "
        f"{number} and again in pass {again}, and no state was loaded: set_epoch() named an epoch "
        "that was over, or a loop was left and begun anew"
        for (run, begin, last, number, again), of in ranks.items()
    ]


def _loader_of(placed: PlacedLine) -> tuple[str, str, int, int]:
    """What the passes of one loader through one epoch share."""
    line: CoverageLine = placed.line
    return placed.file, line.run, line.rank, line.epoch
