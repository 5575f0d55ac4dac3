"""A defect or oddity of a shard, as checks report it."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.base.errors import DataError, ShardwiseError


@dataclass(frozen=True)
class Problem:
    """A defect or oddity of a shard or its index, its position, and what to do (`hint`, or "")."""

    url: str
    message: str
    hint: str = ""
    key: str | None = None
    field: str | None = None
    offset: int | None = None


def problem_of(error: ShardwiseError, url: str) -> Problem:
    """An error as a problem of a shard."""
    if isinstance(error, DataError):
        return Problem(
            error.url or url, error.reason, key=error.key, field=error.field, offset=error.offset
        )
    return Problem(url, str(error))
