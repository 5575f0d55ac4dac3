"""The lines of a coverage directory, read and checked, with where each stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shardwise.cli.output import plural
from shardwise.errors import StorageError
from shardwise.plan.coverage_line import CoverageLine

__all__ = ["CoverageLines", "PlacedLine", "read_coverage"]


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """A line and its place.

    Attributes:
        line: the line.
        file: the name of its file.
        number: which line of the file, from 1 on.
    """

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
