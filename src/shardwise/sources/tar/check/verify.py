"""Verifying a shard: everything is read, everything that can be checked is checked.

What can't be known: whether the last samples of a shard were replaced by zeros before it was ever
indexed; such a shard is a whole, shorter one. Imports numpy, `shardwise.errors`, storage and this
package.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.errors import DataError, ShardwiseError
from shardwise.shown import shown
from shardwise.sources.tar.index.acceptance import changed, fits
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.index.digests import payload_digests
from shardwise.sources.tar.index.index_store import IndexStore, open_uncached
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.storage import StorageOptions, is_local

__all__ = ["Problem", "problem_of", "verify_shard"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong or odd.

    Attributes:
        url: the shard or its index.
        message: what it is, with the values.
        hint: what to do about it; "" where the message says so.
        key: the sample, if it is one's.
        field: its field.
        offset: the byte in the shard.
    """

    url: str
    message: str
    hint: str = ""
    key: str | None = None
    field: str | None = None
    offset: int | None = None


def verify_shard(
    url: str,
    *,
    index: str | os.PathLike[str] | None = None,
    options: StorageOptions | None = None,
    accept_unfinished: bool = False,
    progress: Callable[[int], object] | None = None,
) -> list[Problem]:
    """Read a shard and its index whole and hold them against each other.

    The headers with their checksums, the end, what the index says of each sample and, where the
    index has digests, every payload.

    Args:
        url: the shard.
        index: the directory of the index files; None for beside the shards.
        options: how a remote shard is reached; None for the defaults.
        accept_unfinished: whether it is no problem that a shard has no end.
        progress: called with how many bytes of payloads were read since it was called last.

    Returns:
        All problems that were found; an empty list if there is none.
    """
    store = IndexStore(None if index is None else os.fspath(index), options)
    found: list[Problem] = []
    saved = built = None
    try:
        now = store.stat(url)
    except ShardwiseError as error:
        return [problem_of(error, url)]
    try:
        # Without an index the shard is checked by itself.
        saved = store.load(url, now)
        if saved is not None and not fits(saved.header, url, now):
            hint = (
                f"get the shard anew, or bring the index up to date: `{store.command} {shown(url)}`"
            )
            found.append(Problem(url, changed(saved.header, now), hint))
            saved = None
    except ShardwiseError as error:
        found.append(problem_of(error, url))
    try:
        built = build_index(url, options=options, accept_unfinished=True)
    except ShardwiseError as error:
        found.append(problem_of(error, url))
    if built is not None and not built.header.has_end and not accept_unfinished:
        message = (
            "the shard has no end (two blocks of zeros): its writer was stopped, or it was cut"
        )
        whole = f"if it holds all it should ({built.num_samples} samples), "
        hint = whole + (
            f"end it with `truncate --size=+1024 {shown(url)}` and index it again"
            if is_local(url)
            else "it can be used; else put it there anew"
        )
        found.append(Problem(url, message, hint, offset=built.num_bytes))
    if saved is not None and built is not None:
        found += _differences(url, saved, built)
    known = built if saved is None else saved
    if known is not None:
        found += _payload_problems(url, known, options, progress)
    return found


def problem_of(error: ShardwiseError, url: str) -> Problem:
    """An error as a problem of a shard."""
    if isinstance(error, DataError):
        return Problem(
            error.url or url, error.reason, key=error.key, field=error.field, offset=error.offset
        )
    return Problem(url, str(error))


def _differences(url: str, saved: ShardIndex, built: ShardIndex) -> list[Problem]:
    """Where the index says something else of the samples than the shard."""
    hint = f"get the shard anew, or make its index anew with `shardwise index --force {shown(url)}`"
    if (saved.num_samples, saved.fields) != (built.num_samples, built.fields):
        return [
            Problem(
                url,
                f"the index says {saved.num_samples} samples with the fields {saved.fields}, the "
                f"shard has {built.num_samples} with {built.fields}",
                hint,
            )
        ]
    problems = []
    for row, (said, found) in enumerate(zip(saved.keys, built.keys, strict=True)):
        if said != found:
            message = f"sample {row} has the key {said!r} in the index and {found!r} in the shard"
            problems.append(Problem(url, message, hint, key=found))
    rows = np.arange(saved.num_samples)
    for field in saved.fields:
        (said_at, said_size), (at, size) = (i.locate(field, rows) for i in (saved, built))
        wrong = np.flatnonzero((said_size != size) | ((said_at != at) & (size >= 0)))
        problems += [
            Problem(
                url,
                f"the index says {said_size[row]} bytes at {said_at[row]}, the shard has "
                f"{size[row]} at {at[row]} (-1: no such field)",
                hint,
                key=built.keys[row],
                field=field,
                offset=int(at[row]),
            )
            for row in wrong.tolist()
        ]
    return problems


def _payload_problems(
    url: str,
    index: ShardIndex,
    options: StorageOptions | None,
    progress: Callable[[int], object] | None,
) -> list[Problem]:
    """Read all payloads: those that can't be read, or differ from their digests."""
    problems = []
    try:
        file = open_uncached(url, options)
        for field, rows, digests in payload_digests(file, index, progress=progress):
            wanted = index.digests(field)
            wrong = rows[:0] if wanted is None else rows[wanted[rows] != digests]
            offsets, _ = index.locate(field, wrong)
            for row, offset in zip(wrong.tolist(), offsets.tolist(), strict=True):
                problems.append(
                    Problem(
                        url,
                        "the payload is not the one that was indexed: its CRC-32 differs",
                        "get the shard anew",
                        key=index.keys[row],
                        field=field,
                        offset=offset,
                    )
                )
    except ShardwiseError as error:
        problems.append(problem_of(error, url))
    return problems
