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
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from shardwise.cli.output import plural
from shardwise.errors import StorageError
from shardwise.plan.coverage_line import CoverageLine

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


@dataclass(slots=True)
class CoverageLines:
    """What a directory holds.

    Attributes:
        lines: all lines that could be read.
        faults: lines that could not, in words.
        notes: lines that a kill cut short, in words: they count for nothing.
    """

    lines: list[PlacedLine] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_coverage(directory: Path) -> CoverageLines:
    """Read all `*.jsonl` of a coverage directory.

    Raises:
        StorageError: it can't be read, or holds no such file.
    """
    found = CoverageLines()
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".jsonl")
        for path in paths:
            _read_file(path, found)
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise StorageError(f"the coverage directory {str(directory)!r}: {error}") from error
    if not paths:
        raise StorageError(
            f"{str(directory)!r} holds no coverage: there is no *.jsonl in it; ranks write such "
            "files with sw.DataLoader(..., coverage=DIR), at state_dict() and at an epoch's end"
        )
    if not (found.lines or found.faults):
        found.faults.append(f"{plural(len(paths), 'file')} without a whole line")
    return found


def _read_file(path: Path, found: CoverageLines) -> None:
    for number, data in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not data.endswith(b"\n"):
            found.notes.append(
                f"line {number} of {path.name} has no end: its process was killed while it wrote, "
                "and the line counts for nothing"
            )
            continue
        try:
            line = CoverageLine.from_text(data.decode())
        except ValueError as error:  # also of the decoding
            found.faults.append(f"line {number} of {path.name} can't be used: {error}")
            continue
        found.lines.append(PlacedLine(line, path.name, number))


@dataclass(slots=True)
class RankPass:
    """One pass of one rank.

    Attributes:
        lines: its lines, by their first position.
    """

    lines: list[PlacedLine] = field(default_factory=list)

    @property
    def began(self) -> float:
        """When it began, in seconds since 1970."""
        return self.lines[0].line.began

    def chain(self) -> list[PlacedLine]:
        """The lines that follow one another without a gap, from where the pass began."""
        chain: list[PlacedLine] = []
        position = self.lines[0].line.begin
        for placed in self.lines:
            if placed.line.first == position:
                chain.append(placed)
                position = placed.line.last
        return chain

    def until(self, position: int) -> list[PlacedLine] | None:
        """The chain's lines up to a position; None where no line of the chain ends there."""
        chain = [placed for placed in self.chain() if placed.line.last <= position]
        return chain if chain and chain[-1].line.last == position else None

    def twice(self) -> list[tuple[PlacedLine, PlacedLine]]:
        """Lines that cover positions which another line of the pass covers too."""
        found, last = [], self.lines[0]
        for placed in self.lines[1:]:
            if placed.line.first < last.line.last:
                found.append((last, placed))
            if placed.line.last > last.line.last:
                last = placed
        return found


@dataclass(slots=True)
class Leg:
    """The passes of all ranks that began at one position, in one run where that is known.

    Attributes:
        passes: each rank's passes, the newest first.
    """

    passes: dict[int, list[RankPass]]

    @property
    def line(self) -> CoverageLine:
        """Any line, for what they all have in common: epoch, begin, world size, data."""
        return self._all()[0].lines[0].line

    @property
    def began(self) -> tuple[float, float]:
        """When the first and the last of the passes began."""
        times = [each.began for each in self._all()]
        return min(times), max(times)

    @property
    def run(self) -> str:
        """The run's name: of rank 0 where each rank has one of its own."""
        return self.passes[min(self.passes)][0].lines[0].line.run

    def ends(self, rank: int) -> set[int]:
        """The positions up to which a rank's lines reach, without gaps."""
        return {p.line.last for each in self.passes.get(rank, []) for p in each.chain()}

    def reached(self) -> int:
        """The last position that all ranks reached; the beginning where there is none."""
        common = set.intersection(*(self.ends(rank) for rank in range(self.line.world_size)))
        return max(common, default=self.line.begin)

    def furthest(self) -> int:
        """The last position that any line reaches."""
        return max(p.line.last for each in self._all() for p in each.lines)

    def until(self, rank: int, position: int) -> list[PlacedLine] | None:
        """A rank's lines from the beginning up to a position: of its newest pass that has them."""
        chains = (each.until(position) for each in self.passes.get(rank, []))
        return next((chain for chain in chains if chain is not None), None)

    def copies(self, chain: list[PlacedLine], position: int) -> list[PlacedLine]:
        """The lines up to a position of other processes that had a chain's rank in the same pass.

        Ranks of a group that holds one model between them (tensor parallel) get equal batches.
        """
        if not (chain and chain[0].line.is_shared):
            return []
        first = chain[0]
        return [
            placed
            for each in self.passes[first.line.rank]
            for placed in each.chain()
            if placed.file != first.file
            and placed.line.number == first.line.number
            and placed.line.last <= position
        ]

    def gaps(self) -> list[int]:
        """The ranks that have lines behind positions of which they have none."""
        return [rank for rank in sorted(self.passes) if self._has_gap(rank)]

    def is_torn(self) -> bool:
        """Whether ranks lack lines that no kill explains: others ended the epoch, or have gaps."""
        end = self.line.num_samples
        return bool(self.gaps()) or (self.furthest() == end and bool(self.lacking(end)))

    def _has_gap(self, rank: int) -> bool:
        reached = max(self.ends(rank), default=self.line.begin)
        return any(p.line.last > reached for each in self.passes[rank] for p in each.lines)

    def lacking(self, position: int) -> list[int]:
        """The ranks without a line that ends at a position."""
        return [r for r in range(self.line.world_size) if self.until(r, position) is None]

    def _all(self) -> list[RankPass]:
        return [each for passes in self.passes.values() for each in passes]


def legs_of(lines: Iterable[PlacedLine]) -> list[Leg]:
    """The legs of lines of one data and order, those that began last first."""
    passes: dict[tuple[tuple[object, ...], int, object], RankPass] = defaultdict(RankPass)
    for placed in lines:
        line = placed.line
        # Without a process group each rank has a run of its own: ranks belong together by where
        # they began, and in how large a world.
        run = line.run if line.is_shared else ""
        leg = (run, line.world_size, line.batch_size, line.remainder, line.epoch, line.begin)
        passes[leg, line.rank, (line.run, line.number, line.began)].lines.append(placed)
    legs: dict[object, dict[int, list[RankPass]]] = defaultdict(lambda: defaultdict(list))
    for (common, rank, _), each in passes.items():
        each.lines.sort(key=lambda p: (p.line.first, p.line.last, p.file, p.number))
        legs[common][rank].append(each)
    for ranks in legs.values():
        for of_rank in ranks.values():
            of_rank.sort(key=lambda each: each.began, reverse=True)
    return sorted((Leg(dict(r)) for r in legs.values()), key=lambda x: x.began[1], reverse=True)


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
