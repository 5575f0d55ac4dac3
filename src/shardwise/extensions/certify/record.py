"""The record of a training: which data a model has seen, how often, and by which code.

What new laws ask for, in one JSON file; two of them are compared entry by entry.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.base.abilities import having
from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.shown import shown_in
from shardwise.base.version import __version__
from shardwise.cli.output import clean, finish, write_line
from shardwise.dataset import Dataset
from shardwise.dataset.recipe_digest import recipe_digest
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
    document = {"ok": not differences, "differences": differences}
    finish(document, _show, is_well=not differences)


def _show(document: Mapping[str, Any]) -> None:
    for each in document["differences"]:
        write_line(clean(f"{each['entry']}: {each['one']!r}, then {each['other']!r}"))
    if document["ok"]:
        write_line("the records are equal")


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
