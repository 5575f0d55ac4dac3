"""`shardwise certify`: the proof that each sample was trained once, from a coverage directory."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from shardwise.cli.data import open_data
from shardwise.cli.epoch_verdict import EpochVerdict, verdict_of
from shardwise.cli.legs import (
    PlacedLine,
    legs_of,
    mixed_lines,
    read_coverage,
    repeated_positions,
    runs_at_once,
)
from shardwise.cli.lineage import lineage_of, without_undone
from shardwise.cli.options import common_options, shard_options
from shardwise.cli.output import (
    clean,
    finish,
    format_count,
    plural,
    write_line,
    write_table,
)
from shardwise.plan.coverage_line import CoverageLine

# Lines of one kind that are shown; the JSON document has all.
MAX_SHOWN = 20


@click.command()
@click.argument("directory", metavar="DIR")
@click.argument("urls", nargs=-1, metavar="[URLS]...")
@shard_options
@common_options
def certify(
    directory: str,
    urls: tuple[str, ...],
    index: str | None,
    accept_unfinished: bool,
) -> None:
    """Add up what all ranks of all runs handed out, and hold it against the plan.

    DIR is what the loaders had as coverage=DIR. With the data's URLS, samples of a fault are named.
    Exit code 1 if a sample was not handed out exactly once, or nothing tells.
    """
    all_lines, faults, notes = read_coverage(Path(directory))
    data = None
    if urls:
        data = open_data(urls, index=index, accept_unfinished=accept_unfinished)
    orders = []
    by_order = _by_order(all_lines)
    kept, joined = without_undone(by_order)
    for lines, counting in zip(by_order, kept, strict=True):
        some = lines[0].line
        verdicts = [
            verdict_of(epoch, stretches, data)
            for epoch, stretches in lineage_of(legs_of(counting), joined=joined).items()
        ]
        if data is not None and data.fingerprint != some.fingerprint:
            faults.append(
                f"{plural(len(lines), 'line')}, the first of which is {lines[0].place}, of other "
                f"data: the fingerprint is {some.fingerprint}, the data's {data.fingerprint}"
            )
        for verdict in verdicts:
            verdict.faults += repeated_positions(counting, verdict.used)
        faults += runs_at_once(lines)
        num_undone = len(lines) - sum(len(verdict.used) for verdict in verdicts)
        orders.append((some, verdicts, num_undone))
    faults += mixed_lines(all_lines)
    is_ok = not faults and not any(v.faults for _, verdicts, _ in orders for v in verdicts)
    described = [
        {
            "fingerprint": some.fingerprint,
            "order": some.order,
            "num_samples": some.num_samples,
            "epochs": [verdict.to_dict() for verdict in verdicts],
            "epochs_without_lines": _without_lines(verdicts),
            "num_undone_lines": num_undone,
        }
        for some, verdicts, num_undone in orders
    ]
    document = {"ok": is_ok, "orders": described, "faults": faults, "notes": notes}
    finish(document, _show, orders, is_well=is_ok)


def _by_order(lines: list[PlacedLine]) -> list[list[PlacedLine]]:
    """The lines of each data and order, those with the most lines first."""
    orders: dict[tuple[str, int, str], list[PlacedLine]] = defaultdict(list)
    for placed in lines:
        line = placed.line
        order = json.dumps(line.order, sort_keys=True)
        orders[(line.fingerprint, line.num_samples, order)].append(placed)
    return sorted(orders.values(), key=len, reverse=True)


def _show(
    document: dict[str, Any], orders: list[tuple[CoverageLine, list[EpochVerdict], int]]
) -> None:
    for order in orders:
        _show_order(*order)
    _show_texts("fault", document["faults"])
    _show_texts("note", document["notes"])


def _show_order(some: CoverageLine, verdicts: list[EpochVerdict], num_undone: int) -> None:
    """Write the table of one data and order, and a line an epoch."""
    kind = clean(str(some.order.get("sampler", "?")))
    seed = f", seed {some.order['seed']}" if "seed" in some.order else ""
    write_line(f"data {some.fingerprint}, order {kind}{seed}")
    write_line()
    titles = [">epoch", ">handed out", ">skipped", ">replaced", ">dropped", ">padding", "on ranks"]
    rows = [
        [
            str(v.epoch),
            format_count(v.counted.handed_out.count),
            format_count(v.counted.skipped.count),
            format_count(v.counted.replaced.count),
            format_count(v.num_dropped),
            format_count(v.counted.num_padded),
            ", then ".join(map(str, v.world_sizes)),
        ]
        for v in verdicts
    ]
    write_table(titles, rows)
    write_line()
    for verdict in verdicts:
        write_line(verdict.text)
        _show_texts("fault", verdict.faults)
        _show_texts("note", verdict.notes)
    for first, last in _without_lines(verdicts):
        epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        write_line(f"{epochs}: no line of this data and order, so nothing is known")
    if num_undone:
        write_line(
            f"{plural(num_undone, 'line')} of work that was undone: a later run went on from an "
            "earlier position"
        )
    write_line()


def _without_lines(verdicts: list[EpochVerdict]) -> list[tuple[int, int]]:
    """The epochs before the last one that no line is about: first and last of each range."""
    epochs = [-1, *sorted(verdict.epoch for verdict in verdicts)]
    return [(one + 1, other - 1) for one, other in pairwise(epochs) if other - one > 1]


def _show_texts(kind: str, texts: list[str]) -> None:
    for text in texts[:MAX_SHOWN]:
        write_line(clean(text) if text.startswith("    ") else f"  {kind}: {clean(text)}")
    if len(texts) > MAX_SHOWN:
        write_line(f"  ... and {len(texts) - MAX_SHOWN} more (--json has all)")
