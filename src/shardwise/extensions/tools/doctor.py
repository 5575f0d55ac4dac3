"""`shardwise doctor`: what is odd about these shards, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np

from shardwise.base.progress_bar import progress
from shardwise.cli.data import describe_problem, list_shards, require_tar, write_problem
from shardwise.cli.options import common_options, shard_options, urls_argument
from shardwise.cli.output import finish, format_count, plural, write_line
from shardwise.extensions.tools.oddities import Oddities
from shardwise.extensions.tools.shard_checks import examine_shard, header_problems, wrong_entries
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.problems import Problem

# The largest shard's samples against the median shard's.
UNEVEN_RATIO = 4

_MISSING_HINT = "the first use makes it; `shardwise index` does that ahead of time"


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
            found = list(header_problems(report, store, accept_unfinished=accept_unfinished))
            is_fresh = report.saved is not None and report.saved.state == "fresh"
            # With an index that fits, reading does not look at the headers.
            refused = [each for each in found if not (is_fresh and each is report.damage)]
            errors += refused
            said = {problem.message for problem in refused}
            odd += [problem for problem in report.findings if problem.message not in said]
            if not refused and report.saved is not None and report.saved.state == "missing":
                odd.append(Problem(url, "the index is missing", _MISSING_HINT))
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


def _compare(shards: Sequence[Oddities]) -> Iterator[Problem]:
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
    is_well = not document["num_errors"]
    write_line(f"{num_errors} and {num_oddities} in {samples} in {shards}", is_well=is_well)
