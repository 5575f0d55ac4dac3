"""The files of a coverage directory, summed up while they are read: memory grows with the ranks.

A file has the lines of one loader of one rank. Of each pass only the sums up to some positions are
kept: the positions at which other files start, and the last ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from operator import add, attrgetter
from pathlib import Path
from typing import NamedTuple

from shardwise.base.errors import StorageError
from shardwise.cli.output import plural
from shardwise.plan.coverage_line import CoverageLine
from shardwise.plan.tallied import Tallied

# Ranks stand a few lines apart when they are killed.
_NUM_LAST = 64
# What all lines of one pass have in common.
_OF_A_PASS = (
    "is_shared", "world_size", "batch_size", "remainder", "epoch", "begin", "num_samples",
    "fingerprint", "order", "resumed",
)  # fmt: skip
_facts_of = attrgetter(*_OF_A_PASS)
_NO_SUMS = (0,) * 11


class End(NamedTuple):
    """A position at which a line ends.

    Attributes:
        sums: of all lines up to it: counts and checksums of samples as recorded, skipped, replaced
            and planned; then padding, given indices, and lines.
        past: the line's `last_past`.
    """

    sums: tuple[int, ...]
    past: str


class Mismatch(NamedTuple):
    """Lines in a row whose samples are not those of the plan; `place` is of the first one."""

    first: int
    num_recorded: int
    num_planned: int
    place: str
    last: int


class Pass:
    """A loader's pass through the rest of an epoch.

    Attributes:
        line: the first line.
        reached: its lines follow one another without a gap up to here.
        furthest: the last position of any line.
        gap: the first line after a gap; None without one.
        ends: positions at which lines end, ascending.
        mismatches: lines that differ from the plan.
        repeated: an earlier pass of this loader that went through positions of this one, with no
            state loaded in between, and how far; None without one.
        whole: samples dropped, and all samples of the epoch, where a line ended it.
    """

    __slots__ = (
        "_facts", "_is_contradicted", "_last", "_sums", "ends", "furthest", "gap", "line",
        "mismatches", "place", "reached", "repeated", "whole",
    )  # fmt: skip

    def __init__(self, line: CoverageLine, place: str) -> None:
        self.line, self.place = line, place
        self.reached = self.furthest = line.begin
        self.gap: tuple[int, int] | None = None
        self.ends: dict[int, End] = {}
        self.mismatches: list[Mismatch] = []
        self.repeated: tuple[int, int] | None = None
        self.whole: tuple[Tallied, Tallied | None] | None = None
        self._facts = _facts_of(line)
        self._is_contradicted = False
        self._sums = _NO_SUMS
        self._last: list[int] = []

    def add(self, line: CoverageLine, place: str, kept: Collection[object]) -> str | None:
        """Add a line; returns what is wrong with it.

        `kept` has the pasts and the (epoch, position) whose ends are needed later.
        """
        if _facts_of(line) != self._facts:
            if self._is_contradicted:
                return None
            self._is_contradicted = True
            names = [n for n in _OF_A_PASS if getattr(line, n) != getattr(self.line, n)]
            return (
                f"{self.place} and {place} are of one pass and differ in {', '.join(names)}: one "
                "of them was changed, or is of another file"
            )
        if line.first < self.reached:
            return (
                f"{place} covers positions of rank {line.rank} that an earlier line covers already "
                f"({describe_range(line, line.first, line.last)})"
            )
        self.furthest = max(self.furthest, line.last)
        if line.first > self.reached:
            self.gap = self.gap or (line.first, line.last)
            return None
        self._sum_up(line, place)
        self.reached = line.last
        self.ends[line.last] = End(self._sums, line.last_past)
        if line.is_end:
            self.whole = (line.dropped, line.expected)
        num_old = len(self._last) if line.is_end else len(self._last) + 1 - _NUM_LAST
        for old in self._last[: max(0, num_old)]:
            if (line.epoch, old) not in kept and self.ends[old].past not in kept:
                del self.ends[old]
        self._last = [*self._last[max(0, num_old) :], line.last]
        return None

    def _sum_up(self, line: CoverageLine, place: str) -> None:
        """Add a line's samples to the sums, and compare them with the plan."""
        done, skipped, replaced = line.handed_out, line.skipped, line.replaced
        self._sums = tuple(
            map(
                add,
                self._sums,
                (
                    *(done.count, done.word, skipped.count, skipped.word),
                    *(replaced.count, replaced.word, line.planned.count, line.planned.word),
                    *(line.num_padded, done.count if line.is_given else 0, 1),
                ),
            )
        )
        recorded = done if not (skipped.count or replaced.count) else done + skipped + replaced
        if recorded == line.planned:
            return
        found = Mismatch(line.first, recorded.count, line.planned.count, place, line.last)
        if self.mismatches and self.mismatches[-1].last == line.first:
            first, num_recorded, num_planned, start, _ = self.mismatches.pop()
            counts = (num_recorded + found.num_recorded, num_planned + found.num_planned)
            found = Mismatch(first, *counts, start, line.last)
        self.mismatches.append(found)

    def sums(self, position: int) -> tuple[int, ...]:
        """The sums up to a position, or else up to the last end before it."""
        ends = [each for each in self.ends if each <= position]
        return self.ends[max(ends)].sums if ends else _NO_SUMS


@dataclass(slots=True)
class Process:
    """A loader of one rank in one process: its lines of one order, and when they were written.

    Attributes:
        line: the first line.
        passes: by number, ascending.
    """

    line: CoverageLine
    began: float
    written: float
    passes: dict[int, Pass] = field(default_factory=dict)
    num_lines: int = 0

    @property
    def first(self) -> CoverageLine:
        """A line of the first pass."""
        return self.passes[min(self.passes)].line


@dataclass(slots=True)
class Coverage:
    """What a directory holds: processes, and what is wrong with lines of it, in words."""

    processes: list[Process] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_coverage(directory: Path) -> Coverage:
    """Read all `*.jsonl` of a coverage directory, a line at a time.

    Raises:
        StorageError: it can't be read, or holds no such file.
    """
    coverage = Coverage()
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".jsonl")
        kept = _starts_of(paths)
        seen: dict[object, str] = {}
        for path in paths:
            _read_file(path, kept, seen, coverage)
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise StorageError(f"the coverage directory {str(directory)!r}: {error}") from error
    if not paths:
        raise StorageError(
            f"{str(directory)!r} holds no coverage: there is no *.jsonl in it; ranks write such "
            "files with sw.DataLoader(..., coverage=DIR), at state_dict() and at an epoch's end"
        )
    if not (coverage.processes or coverage.faults):
        coverage.faults.append(f"{plural(len(paths), 'file')} without a whole line")
    return coverage


def _starts_of(paths: list[Path]) -> set[object]:
    """Where files start, as (epoch, position) and as a past: only there may runs have resumed."""
    starts: set[object] = set()
    for path in paths:
        with path.open("rb") as file:
            try:
                line = CoverageLine.from_text(file.readline().decode())
            except ValueError:  # reported when the file is read
                continue
        starts |= {(line.epoch, line.begin), line.begin_past} - {""}
    return starts


def _read_file(path: Path, kept: set[object], seen: dict[object, str], coverage: Coverage) -> None:
    """Add up the lines of a file; `seen` has the file of each pass."""
    processes: dict[object, list[Process]] = {}
    num_orders = 0
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            place = f"line {number} of {path.name}"
            if not data.endswith(b"\n"):
                coverage.notes.append(
                    f"{place} has no end: its process was killed while it wrote, and the line "
                    "counts for nothing"
                )
                continue
            try:
                line = CoverageLine.from_text(data.decode())
            except ValueError as error:  # also of the decoding
                coverage.faults.append(f"{place} can't be used: {error}")
                continue
            of_rank = processes.setdefault((line.run, line.rank), [])
            process = next((p for p in of_rank if _is_same_order(p.line, line)), None)
            if process is None:
                process = Process(line, line.began, line.written)
                of_rank.append(process)
                num_orders += 1
            fault = _add_line(process, line, place, kept, seen, path.name)
            if fault is not None:
                coverage.faults.append(fault)
    found = [process for of_rank in processes.values() for process in of_rank]
    if num_orders > len(processes):
        coverage.faults.append(
            f"{path.name} has lines of {num_orders} different data or orders: a loader writes of "
            "one alone"
        )
    coverage.processes += [process for process in found if process.passes]


def _is_same_order(one: CoverageLine, other: CoverageLine) -> bool:
    return one.fingerprint == other.fingerprint and one.order == other.order


def _add_line(
    process: Process,
    line: CoverageLine,
    place: str,
    kept: set[object],
    seen: dict[object, str],
    file: str,
) -> str | None:
    """Add a line to its pass; returns what is wrong with it."""
    current = process.passes.get(line.number)
    if current is None:
        current = Pass(line, place)
        key = (line.run, line.rank, line.number, line.began, line.fingerprint)
        if seen.setdefault(key, file) != file:
            return (
                f"{place} covers positions of rank {line.rank} that {seen[key]} covers already "
                f"({describe_range(line, line.first, line.last)}): one file is a copy"
            )
        for earlier, other in process.passes.items():
            if other.line.epoch == line.epoch and other.furthest > line.begin:
                current.repeated = (earlier, other.furthest)
        process.passes[line.number] = current
    fault = current.add(line, place, kept)
    if fault is None:
        process.num_lines += 1
        process.began = min(process.began, line.began)
        process.written = max(process.written, line.written)
    return fault


def describe_range(line: CoverageLine, first: int, last: int) -> str:
    """Positions of a line's epoch, and the steps of its pass that they are."""
    size = line.batch_size * line.world_size
    steps = (first - line.begin) // size, -((line.begin - last) // size)
    return f"epoch {line.epoch}, steps {steps[0]} to {steps[1]}, positions {first} to {last}"
