"""The files of a coverage directory, summed up while they are read: memory grows with the files.

A file has the lines of one loader of one rank. Its first and last lines show which run it belongs
to; then it is read once, pass by pass. Only the sums of a pass up to some positions are
kept: the positions at which other files start, and the last ones.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import add, attrgetter
from pathlib import Path
from typing import NamedTuple

from shardwise.base.errors import StorageError
from shardwise.cli.output import plural
from shardwise.plan.coverage_line import CoverageLine
from shardwise.plan.id_word import Tallied

# Ranks stand a few lines apart when they are killed.
_NUM_LAST = 64
# A longer line is not a line of coverage: a foreign file may have no line breaks at all.
_MAX_LINE_BYTES = 1 << 24
# At most this many faults are listed: a foreign file may have nothing but such lines.
_MAX_LISTED = 1000
# The values that all lines of one pass share. A line that differs belongs to another pass.
_pass_of = attrgetter(
    "number", "is_shared", "world_size", "batch_size", "remainder", "epoch", "begin",
    "num_samples", "resumed",
)  # fmt: skip
_file_of = attrgetter("run", "rank", "fingerprint", "order")
NO_SUMS = (0,) * 16


class End(NamedTuple):
    """A position at which a line ends.

    Attributes:
        sums: of all lines up to it: counts and checksums of samples as recorded, skipped, replaced,
            planned, of skipped steps, excluded; then removed ones, padding, given indices, lines.
        past: the line's `last_past`.
    """

    sums: tuple[int, ...]
    past: str


@dataclass(slots=True)
class Pass:
    """A loader's pass through the rest of an epoch.

    Attributes:
        reached: its lines follow one another without a gap up to here.
        wrong: first and last position of lines in a row whose samples are not those of the plan.
        repeats: number and last position of an earlier pass of this loader that went through
            positions of this one, with no state loaded in between; None without one.
    """

    line: CoverageLine
    reached: int
    furthest: int
    ends: dict[int, End] = field(default_factory=dict)
    wrong: list[tuple[int, int]] = field(default_factory=list)
    steps_skipped: list[tuple[int, str]] = field(default_factory=list)
    repeats: tuple[int, int] | None = None
    whole: tuple[Tallied, Tallied | None] | None = None
    _sums: tuple[int, ...] = NO_SUMS
    _last: list[int] = field(default_factory=list)

    def add(self, line: CoverageLine, kept: Collection[object]) -> bool:
        """Add a line; False where an earlier line covers positions of it.

        `kept` has the pasts and the (epoch, position) whose ends are needed later.
        """
        if line.first < self.reached:
            return False
        self.furthest = max(self.furthest, line.last)
        if line.first > self.reached:
            return True
        done, planned, out, excluded = line.handed_out, line.planned, line.left_out, line.excluded
        skipped, replaced = line.skipped, line.replaced
        counts = (
            *(done.count, done.word, skipped.count, skipped.word),
            *(replaced.count, replaced.word, planned.count, planned.word),
            *(out.count, out.word, excluded.count, excluded.word, line.removed),
            *(line.num_padded, done.count if line.is_given else 0, 1),
        )
        if line.steps_skipped:
            self.steps_skipped.append((line.first, line.steps_skipped))
        self._sums = tuple(map(add, self._sums, counts))
        if (done if done.count == planned.count else line.counted.planned) != planned:
            goes_on = bool(self.wrong) and (
                self.wrong[-1][1] == line.first or len(self.wrong) == _MAX_LISTED
            )
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


@dataclass(slots=True)
class Process:
    """A loader of one rank in one process: its file, first line, and when it wrote lines."""

    path: Path
    line: CoverageLine
    began: float
    written: float
    num_lines: int = 0


@dataclass(slots=True)
class Coverage:
    """The content of a directory: processes, and the faults of its lines, in words.

    `kept` has where files start, as (epoch, position) and as pasts: only there runs may resume.
    """

    processes: list[Process] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: set[object] = field(default_factory=set)

    def report(self, fault: str) -> None:
        """Add a fault to those that are listed."""
        if len(self.faults) < _MAX_LISTED:
            self.faults.append(fault)
        elif len(self.faults) == _MAX_LISTED:
            self.faults.append("there are more faults, which are not listed")

    def add_file(self, path: Path) -> None:
        """Find out whose lines a file has; report them if none can be used."""
        found = Coverage()
        line = next((line for _, line in found._lines(path)), None)
        if line is None:
            for fault in found.faults:
                self.report(fault)
            self.notes += found.notes
            return
        last = _last_line(path) or line
        began = min(line.began, last.began, last.written)
        self.processes.append(Process(path, line, began, last.written))
        self.kept |= {(line.epoch, line.begin), line.begin_past} - {""}

    def passes(self, process: Process) -> Iterator[Pass]:
        """Read the file of a process: its passes, one after the other."""
        furthest: dict[object, int] = {}
        newest: dict[int, tuple[int, int]] = {}  # by epoch: number and last position of a pass
        current: Pass | None = None
        current_key, file_key, is_mixed = None, _file_of(process.line), False
        for place, line in self._lines(process.path):
            if _file_of(line) != file_key:
                if not is_mixed:
                    self.report(
                        f"{place} is of other data or another order than the first, or of another "
                        "run or rank: a file has the lines of one loader"
                    )
                is_mixed = True
                continue
            key = _pass_of(line)
            if current is not None and key == current_key:
                is_next = current.add(line, self.kept)
            elif is_next := key not in furthest:
                if current is not None:
                    yield current
                current, current_key = Pass(line, line.begin, line.begin), key
                current.add(line, self.kept)
                if newest.get(line.epoch, (0, 0))[1] > line.begin:
                    current.repeats = newest[line.epoch]
            if not is_next:
                is_covered = line.first < furthest[key]
                why = "that an earlier line covers already" if is_covered else "after later ones"
                self.report(
                    f"{place} covers positions of rank {line.rank} {why} "
                    f"({describe_range(line, line.first, line.last)})"
                )
                continue
            process.num_lines += 1
            furthest[key] = max(furthest.get(key, 0), line.last)
            if furthest[key] >= newest.get(line.epoch, (0, 0))[1]:
                newest[line.epoch] = (line.number, furthest[key])
        if current is not None:
            yield current

    def _lines(self, path: Path) -> Iterator[tuple[str, CoverageLine]]:
        """The lines of a file, each with its position in words; invalid lines are reported.

        Raises:
            StorageError: it can't be read.
        """
        try:
            with path.open("rb") as file:
                lines = iter(lambda: file.readline(_MAX_LINE_BYTES), b"")
                for number, data in enumerate(lines, 1):
                    place = f"line {number} of {path.name}"
                    try:
                        if data.endswith(b"\n"):
                            yield place, CoverageLine.from_text(data.decode())
                            continue
                    except ValueError as error:  # also of the decoding
                        self.report(f"{place} can't be used: {error}")
                        continue
                    self.notes.append(
                        f"{place} has no end: its process was killed while it wrote, and the line "
                        "counts for nothing"
                    )
        except OSError as error:
            raise StorageError(f"the coverage file {str(path)!r}: {error}") from error


def read_coverage(directory: Path) -> Coverage:
    """Look at all `*.jsonl` of a coverage directory.

    Raises:
        StorageError: it can't be read, or holds no such file.
    """
    coverage = Coverage()
    originals: dict[bytes, Path] = {}
    try:
        # Lines of metrics may lie beside them.
        files = [path for path in directory.iterdir() if path.suffix == ".jsonl"]
        paths = sorted(path for path in files if not path.name.startswith("metrics-"))
        for path in paths:
            with path.open("rb") as file:
                first = file.readline(_MAX_LINE_BYTES).rstrip()
            original = originals.setdefault(first, path) if first else path
            if original != path:
                coverage.report(f"{path.name} is a copy of {original.name}: remove one")
            else:
                coverage.add_file(path)
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


def _last_line(path: Path) -> CoverageLine | None:
    """Return the last line that can be used, if it is near the end of the file."""
    with path.open("rb") as file:
        # Lines are of about 1 kB; those of long schedules are longer.
        for num_bytes in (1 << 16, _MAX_LINE_BYTES):
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            for data in reversed(file.readlines()):
                try:
                    return CoverageLine.from_text(data.decode())
                except ValueError:  # reported when the file is read
                    continue
    return None


def describe_range(line: CoverageLine, first: int, last: int) -> str:
    """Positions of a line's epoch, and the steps of its pass that they are."""
    size = line.global_batch_size or line.batch_size * line.world_size
    steps = (first - line.begin) // size, -((line.begin - last) // size)
    return f"epoch {line.epoch}, steps {steps[0]} to {steps[1]}, positions {first} to {last}"
