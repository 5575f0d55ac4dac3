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
# What all lines of one pass have in common. A line that differs is of a pass of its own.
_pass_of = attrgetter(
    "number", "is_shared", "world_size", "batch_size", "remainder", "epoch", "begin",
    "num_samples", "resumed",
)  # fmt: skip
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


class Pass:
    """A loader's pass through the rest of an epoch.

    Attributes:
        line: the first line.
        reached: its lines follow one another without a gap up to here.
        furthest: the last position of any line.
        ends: positions at which lines end, ascending.
        wrong: first and last position of lines in a row whose samples are not those of the plan.
        repeats: an earlier pass of this loader that went through positions of this one, with no
            state loaded in between; None without one.
        whole: samples dropped, and all samples of the epoch, where a line ended it.
    """

    __slots__ = (
        "_last", "_sums", "ends", "furthest", "line", "reached", "repeats", "whole", "wrong",
    )  # fmt: skip

    def __init__(self, line: CoverageLine) -> None:
        self.line = line
        self.reached = self.furthest = line.begin
        self.ends: dict[int, End] = {}
        self.wrong: list[tuple[int, int]] = []
        self.repeats: Pass | None = None
        self.whole: tuple[Tallied, Tallied | None] | None = None
        self._sums = _NO_SUMS
        self._last: list[int] = []

    def add(self, line: CoverageLine, kept: Collection[object]) -> bool:
        """Add a line; False where an earlier line covers positions of it.

        `kept` has the pasts and the (epoch, position) whose ends are needed later.
        """
        if line.first < self.reached:
            return False
        self.furthest = max(self.furthest, line.last)
        if line.first > self.reached:
            return True
        done, skipped, replaced, planned = (
            line.handed_out, line.skipped, line.replaced, line.planned,
        )  # fmt: skip
        counts = (
            *(done.count, done.word, skipped.count, skipped.word),
            *(replaced.count, replaced.word, planned.count, planned.word),
            *(line.num_padded, done.count if line.is_given else 0, 1),
        )
        self._sums = tuple(map(add, self._sums, counts))
        if (
            done if not (skipped.count or replaced.count) else done + skipped + replaced
        ) != planned:
            goes_on = bool(self.wrong) and self.wrong[-1][1] == line.first
            first = self.wrong.pop()[0] if goes_on else line.first
            self.wrong.append((first, line.last))
        self.reached = line.last
        self.ends[line.last] = End(self._sums, line.last_past)
        if line.is_end:
            self.whole = (line.dropped, line.expected)
        num_old = len(self._last) if line.is_end else len(self._last) + 1 - _NUM_LAST
        for old in self._last[: max(0, num_old)]:
            if (line.epoch, old) not in kept and self.ends[old].past not in kept:
                del self.ends[old]
        self._last = [*self._last[max(0, num_old) :], line.last]
        return True

    def sums(self, position: int) -> tuple[int, ...]:
        """The sums up to a position, or else up to the last end before it."""
        ends = [each for each in self.ends if each <= position]
        return self.ends[max(ends)].sums if ends else _NO_SUMS


@dataclass(slots=True)
class Process:
    """A loader of one rank in one process: its lines, and when they were written."""

    line: CoverageLine
    began: float
    written: float
    passes: dict[object, Pass] = field(default_factory=dict)
    num_lines: int = 0

    def add(self, line: CoverageLine, kept: Collection[object]) -> bool:
        """Add a line to its pass; False where an earlier line covers positions of it."""
        key = _pass_of(line)
        current = self.passes.get(key)
        if current is None:
            current = Pass(line)
            for other in self.passes.values():
                if other.line.epoch == line.epoch and other.furthest > line.begin:
                    current.repeats = other
            self.passes[key] = current
        if not current.add(line, kept):
            return False
        self.num_lines += 1
        self.began = min(self.began, line.began)
        self.written = max(self.written, line.written)
        return True


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
        originals, kept = _first_lines(paths)
        for path in paths:
            if (original := originals.get(path, path)) != path:
                coverage.faults.append(f"{path.name} is a copy of {original.name}: remove one")
            else:
                _read_file(path, kept, coverage)
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


def _first_lines(paths: list[Path]) -> tuple[dict[Path, Path], set[object]]:
    """The first file that has the first line of each file; and where files start.

    These are (epoch, position), and pasts: only there may runs have resumed.
    """
    originals: dict[Path, Path] = {}
    by_line: dict[bytes, Path] = {}
    starts: set[object] = set()
    for path in paths:
        with path.open("rb") as file:
            data = file.readline()
        try:
            line = CoverageLine.from_text(data.decode())
        except ValueError:  # reported when the file is read
            continue
        originals[path] = by_line.setdefault(data.rstrip(), path)
        starts |= {(line.epoch, line.begin), line.begin_past} - {""}
    return originals, starts


def _read_file(path: Path, kept: set[object], coverage: Coverage) -> None:
    """Add up the lines of a file."""
    processes: dict[object, Process] = {}
    data_and_order = None
    is_mixed = False
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
            data_and_order = data_and_order or (line.fingerprint, line.order)
            if (line.fingerprint, line.order) != data_and_order:
                if not is_mixed:
                    text = f"{place} is of other data or another order than the first"
                    coverage.faults.append(text)
                is_mixed = True
                continue
            key = (line.run, line.rank)
            if key not in processes:
                processes[key] = Process(line, line.began, line.written)
            if not processes[key].add(line, kept):
                coverage.faults.append(
                    f"{place} covers positions of rank {line.rank} that an earlier line covers "
                    f"already ({describe_range(line, line.first, line.last)})"
                )
    coverage.processes += processes.values()


def describe_range(line: CoverageLine, first: int, last: int) -> str:
    """Positions of a line's epoch, and the steps of its pass that they are."""
    size = line.global_batch_size or line.batch_size * line.world_size
    steps = (first - line.begin) // size, -((line.begin - last) // size)
    return f"epoch {line.epoch}, steps {steps[0]} to {steps[1]}, positions {first} to {last}"
