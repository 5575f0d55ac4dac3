"""`shardwise doctor`: what is odd about these shards, and what to do about it.

Imports numpy and the tar source's examining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from shardwise.cli.data import require_tar
from shardwise.cli.options import common_options, shard_options, urls_argument, usage_errors
from shardwise.cli.output import format_count, plural, progress, write_document, write_line
from shardwise.cli.problems import describe_problem, write_problem
from shardwise.cli.shards import list_shards, look_at
from shardwise.errors import ShardwiseError
from shardwise.sources.tar.check.doctor import ShardFacts, examine_shard
from shardwise.sources.tar.check.verify import Problem, problem_of

__all__ = ["doctor"]

# The largest shard against the one in the middle.
UNEVEN = 4


@dataclass(frozen=True)
class Finding:
    """Something odd.

    Attributes:
        problem: what and where.
        is_error: whether reading refuses the shard for it.
    """

    problem: Problem
    is_error: bool


@click.command()
@urls_argument
@shard_options
@common_options
def doctor(
    urls: tuple[str, ...], index: str | None, accept_unfinished: bool, as_json: bool
) -> None:
    """Tell what is odd about these shards, with hints. Reads headers only, and writes nothing.

    Exit code 1 if reading would refuse a shard, else 0, whatever is odd.
    """
    require_tar(urls, "doctor")
    with usage_errors():
        shards = list_shards(urls)
    facts = []
    findings: list[Finding] = []
    with progress("examining", len(shards)) as report:
        for done, url in enumerate(shards, 1):
            seen = examine_shard(url)
            facts.append(seen)
            findings += _examine(seen, index, accept_unfinished=accept_unfinished)
            report(done)
    findings += [Finding(problem, is_error=False) for problem in _compare(facts)]
    findings.sort(key=lambda finding: not finding.is_error)
    num_errors = sum(finding.is_error for finding in findings)
    document = {
        "num_shards": len(shards),
        "num_samples": sum(seen.num_samples for seen in facts),
        "num_errors": num_errors,
        "num_oddities": len(findings) - num_errors,
        "findings": [
            {"level": "error" if finding.is_error else "odd", **describe_problem(finding.problem)}
            for finding in findings
        ],
    }
    if as_json:
        write_document(document)
    else:
        _show(findings, document)
    if num_errors:
        click.get_current_context().exit(1)


def _examine(seen: ShardFacts, index: str | None, *, accept_unfinished: bool) -> list[Finding]:
    """What is odd about one shard and its index, and why reading refuses it, if it does."""
    found = list(seen.findings)
    errors = []
    try:
        state = look_at(seen.url, index, accept_unfinished=accept_unfinished).state
    except ShardwiseError as error:
        refusal = problem_of(error, seen.url)
        # The same, seen by both: it is one finding.
        found = [problem for problem in found if problem.message != refusal.message]
        errors.append(refusal)
    else:
        problem = Problem(seen.url, f"the index is {state}", _INDEX_HINTS.get(state, ""))
        if state == "missing":
            found.append(problem)
        elif state != "fresh":
            errors.append(problem)
    return [
        *(Finding(problem, is_error=True) for problem in errors),
        *(Finding(problem, is_error=False) for problem in found),
    ]


_INDEX_HINTS = {
    "missing": "the first use makes it; `shardwise index` does that ahead of time",
    "stale": "reading refuses this: bring it up to date with `shardwise index`",
    "damaged": "reading refuses this: make it again with `shardwise index`",
}


def _compare(facts: Sequence[ShardFacts]) -> list[Problem]:
    """What is odd about the shards beside each other."""
    problems = []
    filled = [seen for seen in facts if seen.num_samples]
    every = dict.fromkeys(field for seen in filled for field in seen.fields)
    for field in every:
        without = [seen.url for seen in filled if field not in seen.fields]
        if without:
            problems.append(
                Problem(
                    without[0],
                    f"{len(without)} of {plural(len(filled), 'shard')} lack the field {field!r}, "
                    "this is the first",
                    "are these shards of one dataset?",
                    field=field,
                )
            )
    counts = np.array([seen.num_samples for seen in filled])
    if len(counts) > 1 and counts.max() > UNEVEN * np.median(counts):
        largest = filled[int(counts.argmax())]
        problems.append(
            Problem(
                largest.url,
                f"{plural(largest.num_samples, 'sample')}, half of the shards have less than "
                f"{format_count(int(np.median(counts)) + 1)}",
                "ranks still get equal steps; only what is read at one time is less even",
            )
        )
    return problems


def _show(findings: Sequence[Finding], document: dict[str, Any]) -> None:
    """Write each kind of finding once, with the first shard that has it."""
    kinds: dict[tuple[bool, str], list[Problem]] = {}
    for finding in findings:
        problem = finding.problem
        kind = finding.is_error, problem.hint or problem.message
        kinds.setdefault(kind, []).append(problem)
    for (is_error, _), problems in kinds.items():
        num_more = len({problem.url for problem in problems[1:]} - {problems[0].url})
        more = f" (and {plural(num_more, 'more shard')})" if num_more else ""
        write_problem(problems[0], mark="error: " if is_error else "odd: ", more=more)
    errors = plural(document["num_errors"], "error")
    oddities = plural(document["num_oddities"], "oddity", "oddities")
    samples = plural(document["num_samples"], "sample")
    shards = plural(document["num_shards"], "shard")
    write_line(f"{errors} and {oddities} in {samples} in {shards}")
