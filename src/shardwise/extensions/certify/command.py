"""`shardwise certify`: the proof that each sample was trained once, from a coverage directory.

The record of a training says which data a model has seen, how often, and by which code: what new
laws ask for, in one JSON file; two of them are compared entry by entry.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np

from shardwise.base.abilities import having
from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.shown import shown_in
from shardwise.base.version import __version__
from shardwise.cli.data import open_data
from shardwise.cli.options import PathType, common_options, complete_files, shard_options
from shardwise.cli.output import clean, finish, format_count, plural, write_line, write_table
from shardwise.dataset import Dataset
from shardwise.dataset.recipe_digest import recipe_digest
from shardwise.extensions.certify.coverage_files import read_coverage
from shardwise.extensions.certify.epoch_verdict import EpochVerdict, verdict_of
from shardwise.extensions.certify.lineage import lineage_of
from shardwise.extensions.certify.runs import by_order, read_runs, runs_at_once
from shardwise.plan.coverage_line import CoverageLine
from shardwise.plan.protocol import sources_of
from shardwise.sources.protocol import HasVersion
from shardwise.sources.samples import MixedSamples
from shardwise.storage.write import atomic_write

_VERSION = 1


def write_record(path: str, verdict: Mapping[str, Any], data: Dataset | None) -> None:
    """Write the record of a verdict; with `data`, also its parts, their versions and counts."""
    orders = [dict(order) for order in verdict["orders"]]
    for order in orders:
        if data is not None and data.fingerprint == order["fingerprint"]:
            order["data"] = _describe(data)
            last = max(order["epochs"], key=lambda each: each["epoch"])
            sources = sources_of(getattr(data, "sampler", None), last["epoch"], last["reached"])
            order["samples_by_source"] = sources or {"": _sum(order["epochs"], "handed_out")}
        order["left_out"] = {
            name: _sum(order["epochs"], name)
            for name in ("left_out", "skipped", "replaced", "dropped")
        }
    made_by = {"shardwise": __version__, "python": platform.python_version()}
    record = {"version": _VERSION, "made_by": made_by, **verdict, "orders": orders}
    with atomic_write(path, "w") as file:
        json.dump(record, file, indent=2)


def _sum(epochs: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(epoch.get(name, 0) for epoch in epochs)


def _describe(data: Any) -> dict[str, Any]:
    """Names, fingerprints and versions of a dataset, or of a mixture's datasets."""
    mixed, source = having(data, MixedSamples), having(data.source, HasVersion)
    return {
        "name": shown_in(repr(data)),
        "fingerprint": data.fingerprint,
        "version": None if source is None else source.version(),
        "recipe": recipe_digest(data),
        "num_samples": len(data),
        "parts": {name: _describe(part) for name, part in mixed.parts.items()} if mixed else {},
    }


def finish_comparison(one: str, other: str) -> None:
    """End the command with the entries in which two records differ."""
    before, after = (dict(_entries(_read(path), "")) for path in (one, other))
    # Each run has its own name.
    names = [n for n in before | after if before.get(n) != after.get(n) and ".runs." not in n]
    differences = [{"entry": n, "one": before.get(n), "other": after.get(n)} for n in sorted(names)]
    texts = [f"{each['entry']}: {each['one']!r}, then {each['other']!r}" for each in differences]
    document = {"ok": not differences, "differences": differences}
    shown = "\n".join(map(clean, texts)) or "the records are equal"
    finish(document, lambda _: write_line(shown), is_well=not differences)


def _read(path: str) -> Any:
    with as_data_error(f"{path!r} is no record of certify", url=path):
        record = json.loads(Path(path).read_bytes())
        if record["version"] != _VERSION:
            raise DataError(f"its version is {record['version']!r}, this release reads {_VERSION}")
        return record


def _entries(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The leaves of a JSON document by their paths."""
    if isinstance(value, Mapping | list) and value:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in items:
            yield from _entries(each, f"{name}.{key}".lstrip("."))
    else:
        yield name, value


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
