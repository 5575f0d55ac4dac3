"""Problems of shards, as lines for people and as JSON."""

from __future__ import annotations

from typing import Any

from shardwise.cli.output import clean, write_line
from shardwise.shown import shown
from shardwise.sources.tar.check.problem import Problem

__all__ = ["describe_problem", "write_problem"]


def describe_problem(problem: Problem) -> dict[str, Any]:
    """A problem as JSON; what does not apply is null."""
    return {
        "url": problem.url,
        "key": problem.key,
        "field": problem.field,
        "offset": problem.offset,
        "message": problem.message,
        "hint": problem.hint or None,
    }


def write_problem(problem: Problem, *, mark: str = "", more: str = "") -> None:
    """Write a problem on a line, and what to do about it on a second one.

    Args:
        problem: the problem.
        mark: what to begin the line with.
        more: what to end it with.
    """
    where = [
        f"{name} {value!r}"
        for name in ("key", "field", "offset")
        if (value := getattr(problem, name)) is not None
    ]
    location = f" ({', '.join(where)})" if where else ""
    write_line(clean(f"{mark}{shown(problem.url)}: {problem.message}{location}{more}"))
    if problem.hint:
        write_line(clean(f"    {problem.hint}"))
