"""`shardwise info`: shards, samples, fields and their sizes, the index and the fingerprint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from shardwise.base.progress_bar import progress
from shardwise.cli import options, output
from shardwise.cli.data import kind_of, list_shards, open_data
from shardwise.cli.output import format_bytes, format_count, plural
from shardwise.dataset import Dataset
from shardwise.extensions.tools.plots import draw_sizes, drawable
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.index.shard_version import require_end
from shardwise.storage import is_local
from shardwise.storage.user_dirs import user_cache_dir


@click.command()
@options.urls_argument
@options.shard_options
@click.option("--shards", "list_all", is_flag=True, help="List each shard.")
@options.plot_option
@options.common_options
def info(
    urls: tuple[str, ...],
    index: str | None,
    accept_unfinished: bool,
    list_all: bool,
    plot: Path | None,
) -> None:
    """Show what is in the shards, without reading payloads and without writing anything.

    Shards without a fresh index are scanned for this look. Exit code 1 if a shard is missing or
    damaged, or has an index that does not fit: reading refuses it. Of tables and folders, which
    have no index, it shows the counts and the fields. --plot draws the sizes of fields.
    """
    is_tar = kind_of(urls) == "tar"
    if plot is not None:
        with options.usage_errors():
            drawable(plot, is_tar=is_tar)
    if not is_tar:
        data = open_data(urls, index=index, accept_unfinished=accept_unfinished)
        output.finish(_describe_data(data), _show_data)
        return
    names = list_shards(urls)
    shards = []
    sizes: dict[str, list[NDArray[np.int64]]] = {}
    ignored: Counter[str] = Counter()
    with progress("looking", len(names)) as report:
        for done, url in enumerate(names, 1):
            # One index at a time: each may hold a file open.
            shard, its_index = _describe_shard(url, index, accept_unfinished=accept_unfinished)
            shards.append(shard)
            rows = np.arange(its_index.num_samples)
            for field in its_index.fields:
                sizes.setdefault(field, []).append(its_index.locate(field, rows)[1])
            ignored.update(its_index.header.ignored)
            report(done)
    manifest = Manifest(
        "tar", [Shard(shard["url"], shard["num_samples"], shard["num_bytes"]) for shard in shards]
    )
    states = Counter(shard["index_state"] for shard in shards)
    document = {
        "num_shards": len(shards),
        "num_samples": manifest.num_samples,
        "num_bytes": sum(shard["num_bytes"] for shard in shards),
        "fingerprint": manifest.fingerprint,
        "index": {
            "directory": index,
            "states": dict(states),
            "num_bytes": sum(shard["index_bytes"] or 0 for shard in shards),
            "num_with_digests": sum(shard["has_digests"] for shard in shards),
        },
        "fields": [_describe_field(field, parts) for field, parts in sizes.items()],
        "ignored_members": dict(ignored),
        "shards": shards,
    }
    if plot is not None:
        draw_sizes(plot, {name: _sizes_of(parts) for name, parts in sizes.items()})
    output.finish(document, _show, list_all, is_well=not _num_unfit(states))


def _describe_data(data: Dataset) -> dict[str, Any]:
    manifest = data.source.manifest
    return {
        "num_shards": len(manifest.shards),
        "num_samples": manifest.num_samples,
        "num_bytes": manifest.num_bytes,
        "fingerprint": data.fingerprint,
        "fields": list(data.fields),
    }


def _show_data(document: dict[str, Any]) -> None:
    rows = [
        ["samples", format_count(document["num_samples"])],
        ["bytes", format_bytes(document["num_bytes"])],
        ["fields", ", ".join(document["fields"]) or "none"],
        ["fingerprint", document["fingerprint"]],
    ]
    output.write_table(["parts", format_count(document["num_shards"])], rows)


def _describe_shard(
    url: str, index_dir: str | None, *, accept_unfinished: bool
) -> tuple[dict[str, Any], ShardIndex]:
    """One shard as JSON, and its index: the kept one if it is fresh, else one built in memory."""
    store = IndexStore(index_dir)
    saved = store.look(url)
    index = saved.index
    path = store.published_path(url) if index is None else index.path
    index_bytes = None
    if saved.state != "missing" and is_local(path):
        index_bytes = Path(path).stat().st_size
    elif saved.state != "missing" and index is not None:
        index_bytes = len(index.to_bytes())
    if index is None or saved.state == "stale":
        index = build_index(url, accept_unfinished=accept_unfinished)
    elif not accept_unfinished:
        require_end(index.header, url)
    document = {
        "url": url,
        "num_samples": index.num_samples,
        "num_bytes": index.num_bytes,
        "fields": list(index.fields),
        "index": path,
        "index_state": saved.state,
        "index_bytes": index_bytes,
        "has_digests": saved.state == "fresh" and index.header.has_digests,
    }
    return document, index


def _sizes_of(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    sizes = np.concatenate(parts)
    return sizes[sizes >= 0]  # samples without the field have -1


def _describe_field(name: str, parts: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
    sizes = _sizes_of(parts)
    return {
        "name": name,
        "num_samples": len(sizes),
        "min_bytes": int(sizes.min()),
        "median_bytes": float(np.median(sizes)),
        "max_bytes": int(sizes.max()),
        "num_bytes": int(sizes.sum()),
    }


def _show(document: dict[str, Any], list_all: bool) -> None:
    """Write the shards as a whole, a row a field, and if it is asked for a row a shard."""
    index = document["index"]
    states = ", ".join(f"{count} {state}" for state, count in index["states"].items())
    digests = f", {index['num_with_digests']} with digests" if index["num_with_digests"] else ""
    own = str(user_cache_dir())
    where = f"in {own}" if document["shards"][0]["index"].startswith(own) else "beside the shards"
    if index["directory"]:
        where = f"in {output.clean(index['directory'])}"
    rows = [
        ["samples", format_count(document["num_samples"])],
        ["bytes", format_bytes(document["num_bytes"])],
        ["index", f"{where}: {states}{digests} ({format_bytes(index['num_bytes'])})"],
        ["fingerprint", document["fingerprint"]],
    ]
    if document["ignored_members"]:
        left_out = document["ignored_members"].items()
        rows.append(["left out", ", ".join(f"{what}: {count}" for what, count in left_out)])
    output.write_table(["shards", format_count(document["num_shards"])], rows)
    if document["fields"]:
        output.write_line()
        output.write_table(
            ["field", ">samples", ">min", ">median", ">max", ">total"],
            [
                [
                    field["name"],
                    format_count(field["num_samples"]),
                    *(
                        format_bytes(field[f"{which}_bytes"])
                        for which in ("min", "median", "max", "num")
                    ),
                ]
                for field in document["fields"]
            ],
        )
    unfit = _num_unfit(index["states"])
    if unfit:
        output.write_line()
        output.write_line(
            f"{plural(unfit, 'index does', 'indexes do')} not fit, and reading refuses that: bring "
            "them up to date with `shardwise index`"
        )
    if index["states"].get("missing"):
        output.write_line()
        missing = plural(index["states"]["missing"], "index", "indexes")
        output.write_line(f"{missing} to make: the first use does that, or `shardwise index`")
    if list_all:
        output.write_line()
        _show_shards(document["shards"])


def _num_unfit(states: Mapping[str, int]) -> int:
    return states.get("stale", 0) + states.get("damaged", 0)


def _show_shards(shards: Sequence[dict[str, Any]]) -> None:
    output.write_table(
        ["shard", ">samples", ">bytes", "fields", "index"],
        [
            [
                shard["url"],
                format_count(shard["num_samples"]),
                format_bytes(shard["num_bytes"]),
                ",".join(shard["fields"]),
                shard["index_state"],
            ]
            for shard in shards
        ],
    )
