"""A defect or oddity of a shard, with its place."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import DataError, ShardwiseError

__all__ = ["Problem", "problem_of"]


@dataclass(frozen=True)
class Problem:
    """A defect or oddity.

    Attributes:
        url: the shard or its index.
        message: what it is, with the values.
        hint: what to do about it; "" where the message says so.
        key: the sample, if it is about one.
        field: its field.
        offset: the byte in the shard.
    """

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
