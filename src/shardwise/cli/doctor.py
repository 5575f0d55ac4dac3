"""`shardwise doctor`: what is odd about these shards, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np

from shardwise.base.progress_bar import progress
from shardwise.cli.data import (
    describe_problem,
    list_shards,
    require_tar,
    write_problem,
    wrong_entries,
)
from shardwise.cli.options import common_options, shard_options, urls_argument
from shardwise.cli.output import finish, format_count, plural, write_line
from shardwise.sources.tar.check.problems import Oddities, Problem
from shardwise.sources.tar.check.verify import ShardReport, examine_shard
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.shard_version import unfinished

# The largest shard's samples against the median shard's.
UNEVEN_RATIO = 4

_INDEX_HINTS = {
    "missing": "the first use makes it; `shardwise index` does that ahead of time",
    "stale": "reading refuses this: bring it up to date with `shardwise index`",
    "damaged": "reading refuses this: make it again with `shardwise index`",
}


@click.command()
@urls_argument
@shard_options
@common_options
def doctor(urls: tuple[str, ...], index: str | None, accept_unfinished: bool) -> None:
    """Tell what is odd about these shards, with hints. Reads headers only, and writes nothing.

    Exit code 1 if reading would refuse a shard, else 0, whatever is odd.
    """
    require_tar(urls, "doctor")
    shards = list_shards(urls)
    store = IndexStore(index)
    complete: list[Oddities] = []
    # What reading refuses, and what is only odd.
    errors: list[Problem] = []
    odd: list[Problem] = []
    with progress("examining", len(shards)) as show_done:
        for done, url in enumerate(shards, 1):
            report = examine_shard(url, store=store)
            refusal = _refusal(report, accept_unfinished=accept_unfinished)
            errors += [] if refusal is None else [refusal]
            odd += _oddities(report, refusal)
            # Counts up to a damaged header say nothing of the shard.
            if report.oddities.is_complete:
                complete.append(report.oddities)
            show_done(done)
    odd += _compare(complete)
    errors += wrong_entries(urls, index, {problem.url for problem in errors})
    document = {
        "num_shards": len(shards),
        "num_samples": sum(shard.num_samples for shard in complete),
        "num_errors": len(errors),
        "num_oddities": len(odd),
        "findings": [
            {"level": level, **describe_problem(problem)}
            for level, problems in (("error", errors), ("odd", odd))
            for problem in problems
        ],
    }
    finish(document, _show, is_well=not errors)


def _oddities(report: ShardReport, refusal: Problem | None) -> Iterator[Problem]:
    """What is odd about a shard and its index, beside why reading refuses it."""
    for problem in report.findings:
        if refusal is None or problem.message != refusal.message:
            yield problem
    if refusal is None and report.saved is not None and report.saved.state == "missing":
        yield _index_problem(report.url, "missing")


def _refusal(report: ShardReport, *, accept_unfinished: bool) -> Problem | None:
    """Why reading refuses a shard, if it does."""
    saved, built = report.saved, report.built
    is_fresh = saved is not None and saved.state == "fresh"
    if report.damage is not None and not is_fresh:
        return report.damage
    if built is not None and not built.header.has_end and not accept_unfinished:
        return Problem(report.url, unfinished(built.num_samples), offset=built.num_bytes)
    if saved is not None and saved.state in ("stale", "damaged"):
        return _index_problem(report.url, saved.state)
    return None


def _index_problem(url: str, state: str) -> Problem:
    return Problem(url, f"the index is {state}", _INDEX_HINTS[state])


def _compare(shards: Sequence[Oddities]) -> Iterator[Problem]:
    """What is odd about the shards beside each other."""
    filled = [shard for shard in shards if shard.num_samples]
    for field in dict.fromkeys(field for shard in filled for field in shard.fields):
        without = [shard.url for shard in filled if field not in shard.fields]
        if without:
            yield Problem(
                without[0],
                f"{len(without)} of {plural(len(filled), 'shard')} lack the field {field!r}, "
                "this is the first",
                "are these shards of one dataset?",
                field=field,
            )
    counts = np.array([shard.num_samples for shard in filled])
    if len(counts) > 1 and counts.max() > UNEVEN_RATIO * np.median(counts):
        largest = filled[int(counts.argmax())]
        yield Problem(
            largest.url,
            f"{plural(largest.num_samples, 'sample')}, half of the shards have less than "
            f"{format_count(int(np.median(counts)) + 1)}",
            "ranks still get equal steps; only what is read at one time is less even",
        )


def _show(document: dict[str, Any]) -> None:
    """Write each kind of problem once, with the first shard that has it, and the counts."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for finding in document["findings"]:
        kind = (finding["level"], finding["hint"] or finding["message"])
        kinds.setdefault(kind, []).append(finding)
    for (level, _), problems in kinds.items():
        num_more = len({problem["url"] for problem in problems} - {problems[0]["url"]})
        more = f" (and {plural(num_more, 'more shard')})" if num_more else ""
        write_problem(problems[0], mark=f"{level}: ", more=more)
    num_errors = plural(document["num_errors"], "error")
    num_oddities = plural(document["num_oddities"], "oddity", "oddities")
    samples = plural(document["num_samples"], "sample")
    shards = plural(document["num_shards"], "shard")
    write_line(f"{num_errors} and {num_oddities} in {samples} in {shards}")
