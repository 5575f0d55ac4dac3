"""`shardwise certify`: the proof that each sample was trained once, from a coverage directory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np

from shardwise.cli.data import open_data
from shardwise.cli.options import PathType, common_options, complete_files, shard_options
from shardwise.cli.output import clean, finish, format_count, plural, write_line, write_table
from shardwise.dataset import Dataset
from shardwise.extensions.certify.coverage_files import read_coverage
from shardwise.extensions.certify.epoch_verdict import EpochVerdict, verdict_of
from shardwise.extensions.certify.lineage import lineage_of
from shardwise.extensions.certify.record import finish_comparison, write_record
from shardwise.extensions.certify.runs import by_order, read_runs, runs_at_once
from shardwise.plan.coverage_line import CoverageLine

# Lines of one kind that are shown; the JSON document has all.
MAX_SHOWN = 20


@click.command()
@click.argument("directory", metavar="DIR", shell_complete=complete_files)
@click.argument("urls", nargs=-1, metavar="[URLS]...", shell_complete=complete_files)
@shard_options
@click.option(
    "--record",
    metavar="FILE",
    type=PathType(),
    help="Write what the model was trained on, as JSON.",
)
@click.option("--compare", metavar="FILE", help="DIR is a record, too: show how they differ.")
@common_options
def certify(
    directory: str,
    urls: tuple[str, ...],
    index: str | None,
    accept_unfinished: bool,
    record: str | None,
    compare: str | None,
) -> None:
    """Add up what all ranks of all runs handed out, and compare it with the plan.

    DIR is what the loaders had as coverage=DIR. With URLS, the lines must be of that data. Exit
    code 1 if a sample was not handed out exactly once, or nothing tells; or if records differ.
    """
    data = None
    if compare is not None:
        finish_comparison(directory, compare)
        return
    if urls:
        data = open_data(urls, index=index, accept_unfinished=accept_unfinished)
    document = certified(Path(directory), data)
    if record is not None:
        write_record(record, document, data)
    finish(document, show_verdict, is_well=document["ok"])


def certified(directory: Path, data: Dataset | None = None) -> dict[str, Any]:
    """The verdict on a coverage directory as JSON; with `data`, its lines must be of that."""
    coverage = read_coverage(directory)
    faults = coverage.faults
    orders: list[dict[str, Any]] = []
    processes_by_order = by_order(coverage.processes)
    runs_by_order = [read_runs(coverage, processes) for processes in processes_by_order]
    for processes, runs in zip(processes_by_order, runs_by_order, strict=True):
        line = processes[0].line
        num_lines = sum(process.num_lines for process in processes)
        others = [run for other in runs_by_order if other is not runs for run in other]
        verdicts = [verdict_of(*epoch) for epoch in lineage_of(runs, others).items()]
        if data is not None and not _has_part(data, line):
            faults.append(
                f"{plural(num_lines, 'line')} of other data: the fingerprint is "
                f"{line.fingerprint}, the data's {data.fingerprint}"
            )
        faults += runs_at_once(processes)
        orders.append(
            {
                "fingerprint": line.fingerprint,
                "order": line.order,
                "recipes": sorted({process.line.recipe for process in processes} - {""}),
                "num_samples": line.num_samples,
                "epochs": [verdict.to_dict() for verdict in verdicts],
                "epochs_without_lines": _without_lines(verdicts),
                "num_undone_lines": 0
                if any(verdict.faults for verdict in verdicts)
                else num_lines - sum(verdict.num_lines for verdict in verdicts),
            }
        )
    is_ok = not faults and all(epoch["ok"] for order in orders for epoch in order["epochs"])
    return {"ok": is_ok, "orders": orders, "faults": faults, "notes": coverage.notes}


def _has_part(data: Dataset, line: CoverageLine) -> bool:
    """Whether a line is of this data, or of what it was before shards came behind it."""
    first = data.manifest.first(int(np.searchsorted(data.manifest.ends, line.num_samples)) + 1)
    return line.fingerprint in (data.fingerprint, first.fingerprint)


def show_verdict(document: dict[str, Any]) -> None:
    """Write a document of `certified`."""
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
        write_line(epoch["verdict"], is_well=not epoch["faults"])
        _show_texts("fault", epoch["faults"])
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
