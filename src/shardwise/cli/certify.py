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
    orders: list[dict[str, Any]] = []
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
        orders.append(
            {
                "fingerprint": some.fingerprint,
                "order": some.order,
                "num_samples": some.num_samples,
                "epochs": [verdict.to_dict() for verdict in verdicts],
                "epochs_without_lines": _without_lines(verdicts),
                "num_undone_lines": len(lines) - sum(len(verdict.used) for verdict in verdicts),
            }
        )
    faults += mixed_lines(all_lines)
    is_ok = not faults and all(epoch["ok"] for order in orders for epoch in order["epochs"])
    document = {"ok": is_ok, "orders": orders, "faults": faults, "notes": notes}
    finish(document, _show, is_well=is_ok)


def _by_order(lines: list[PlacedLine]) -> list[list[PlacedLine]]:
    """The lines of each data and order, those with the most lines first."""
    orders: dict[tuple[str, int, str], list[PlacedLine]] = defaultdict(list)
    for placed in lines:
        line = placed.line
        order = json.dumps(line.order, sort_keys=True)
        orders[(line.fingerprint, line.num_samples, order)].append(placed)
    return sorted(orders.values(), key=len, reverse=True)


def _show(document: dict[str, Any]) -> None:
    for order in document["orders"]:
        _show_order(order)
    _show_texts("fault", document["faults"])
    _show_texts("note", document["notes"])


def _show_order(order: dict[str, Any]) -> None:
    """Write the table of one data and order, and a line an epoch."""
    spec = order["order"]
    kind = clean(str(spec.get("sampler", "?")))
    seed = f", seed {spec['seed']}" if "seed" in spec else ""
    write_line(f"data {order['fingerprint']}, order {kind}{seed}")
    write_line()
    counts = ("handed_out", "skipped", "replaced", "dropped", "padded")
    titles = [">epoch", ">handed out", ">skipped", ">replaced", ">dropped", ">padding", "on ranks"]
    rows = [
        [
            str(epoch["epoch"]),
            *(format_count(epoch[name]) for name in counts),
            ", then ".join(map(str, epoch["world_sizes"])),
        ]
        for epoch in order["epochs"]
    ]
    write_table(titles, rows)
    write_line()
    for epoch in order["epochs"]:
        write_line(epoch["verdict"])
        _show_texts("fault", epoch["faults"])
        _show_texts("note", epoch["notes"])
    for first, last in order["epochs_without_lines"]:
        epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        write_line(f"{epochs}: no line of this data and order, so nothing is known")
    if order["num_undone_lines"]:
        write_line(
            f"{plural(order['num_undone_lines'], 'line')} of work that was undone: a later run "
            "went on from an earlier position"
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
