"""`shardwise verify`: read everything, check everything.

Imports the tar source's verifying.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click

from shardwise.cli.data import require_tar
from shardwise.cli.options import common_options, shard_options, urls_argument, usage_errors
from shardwise.cli.output import format_bytes, plural, progress, write_document, write_line
from shardwise.cli.problems import describe_problem, write_problem
from shardwise.cli.shards import list_shards, look_at
from shardwise.errors import ShardwiseError
from shardwise.sources.manifest import Shard
from shardwise.sources.tar.check.verify import Problem, problem_of, verify_shard
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.shard_lists import check_counts, is_shard_list, read_shard_list

__all__ = ["verify"]


@click.command()
@urls_argument
@shard_options
@common_options
def verify(
    urls: tuple[str, ...], index: str | None, accept_unfinished: bool, as_json: bool
) -> None:
    """Read every byte of the shards and check all that can be checked.

    The chain of headers, their checksums and the end of each shard; the index against the shard;
    each payload against its digest, if the index has digests; a list's counts against the shards.
    Exit code 1 if there is a problem.
    """
    require_tar(urls, "verify")
    with usage_errors():
        shards = list_shards(urls)
    begin = time.perf_counter()
    problems: list[Problem] = []
    num_bytes = num_with_digests = num_bad = 0
    store = IndexStore(index)
    sizes = [_size_of(url, store) for url in shards]
    # In bytes: a shard may take minutes.
    with progress("verifying", sum(sizes), unit="bytes") as report:
        for done, (url, size) in enumerate(zip(shards, sizes, strict=True)):
            begin_bytes = sum(sizes[:done])
            payloads = _Payloads(report, begin_bytes)
            found = verify_shard(
                url, index=index, accept_unfinished=accept_unfinished, progress=payloads
            )
            problems += found
            num_bad += bool(found)
            # Of a shard with problems, headers may not have been read.
            num_bytes += payloads.num_bytes if found else size
            # What can't be looked at is among the problems.
            with suppress(ShardwiseError, OSError):
                saved = store.load(url, store.stat(url), check=False)
                num_with_digests += saved is not None and saved.header.has_digests
            report(begin_bytes + size)
        problems += _broken_claims(urls, index, accept_unfinished=accept_unfinished)
    seconds = time.perf_counter() - begin
    document = {
        "num_shards": len(shards),
        "num_bytes": num_bytes,
        "num_with_digests": num_with_digests,
        "seconds": round(seconds, 6),
        "bytes_per_s": round(num_bytes / seconds),
        "num_problems": len(problems),
        "num_shards_with_problems": num_bad,
        "problems": [describe_problem(problem) for problem in problems],
    }
    if as_json:
        write_document(document)
    else:
        for problem in problems:
            write_problem(problem)
        _show_summary(document)
    if problems:
        click.get_current_context().exit(1)


def _size_of(url: str, store: IndexStore) -> int:
    """A shard's size; 0 where it can't be told, which is a problem that is found later."""
    try:
        return store.stat(url).num_bytes
    except ShardwiseError:
        return 0


class _Payloads:
    """Counts the bytes of one shard's payloads as they are read, and moves the bar."""

    def __init__(self, report: Callable[[float], None], begin: int) -> None:
        self.num_bytes = 0
        self._report = report
        self._begin = begin

    def __call__(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._report(self._begin + self.num_bytes)


def _broken_claims(
    urls: Sequence[str], index: str | None, *, accept_unfinished: bool
) -> list[Problem]:
    """Counts in shard lists that are not those of the shards."""
    problems = []
    for claim in (claim for url in urls if is_shard_list(url) for claim in read_shard_list(url)):
        try:
            seen = look_at(claim.url, index, accept_unfinished=accept_unfinished).index
        except ShardwiseError:
            # Verifying the shard has found it already.
            continue
        try:
            check_counts([claim], [Shard(claim.url, seen.num_samples, seen.num_bytes)])
        except ShardwiseError as error:
            problems.append(problem_of(error, claim.url))
    return problems


def _show_summary(document: dict[str, Any]) -> None:
    """Write what was read, and what could not be told from it."""
    shards = plural(document["num_shards"], "shard")
    read = f"{format_bytes(document['num_bytes'])} in {document['seconds']:.2f} s"
    speed = f"{format_bytes(document['bytes_per_s'])}/s"
    if document["num_problems"]:
        problems = plural(document["num_problems"], "problem")
        write_line(
            f"{problems} in {document['num_shards_with_problems']} of {shards} ({read}, {speed})"
        )
    else:
        write_line(f"{shards} without a problem ({read}, {speed})")
    without = document["num_shards"] - document["num_with_digests"]
    if without:
        write_line(
            f"{plural(without, 'shard')} without digests: that payloads are what they were can't "
            "be told; `shardwise index --digests` keeps digests from then on"
        )
