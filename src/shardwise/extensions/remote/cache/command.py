"""`shardwise cache`: what lies in a cache of remote files, and emptying it."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from shardwise.base.errors import StorageError
from shardwise.cli.options import PathType, common_options
from shardwise.cli.output import (
    clean,
    finish,
    format_bytes,
    format_count,
    plural,
    write_line,
    write_table,
)
from shardwise.extensions.remote.cache.inspect import clean as clean_cache
from shardwise.extensions.remote.cache.inspect import has_cache, inspect

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _age(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """A time span such as 90s, 30m, 12h, 7d, 2w, in seconds."""
    if value is None:
        return None
    span = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value)
    if not span:
        raise click.BadParameter(f"{value!r} is no age: give one such as 30m, 12h, 7d or 2w")
    return float(span[1]) * _UNITS[span[2]]


@click.command()
@click.argument("directory", metavar="DIR", type=PathType(file_okay=False, path_type=Path))
@click.option("--clean", "is_clean", is_flag=True, help="Remove all blocks that are not in use.")
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_age,
    help="With --clean: only blocks that were not used for this long: 30m, 12h, 7d, 2w.",
)
@common_options
def cache(directory: Path, is_clean: bool, older_than: float | None) -> None:
    """Show what is kept of remote files in the cache in DIR, or remove it.

    DIR is the loader's `cache=`. Processes may be using the cache: what they are reading
    stays. Only files that the cache wrote are removed. Exit code 1 if there is no cache.
    """
    if older_than is not None and not is_clean:
        raise click.UsageError("--older-than says what --clean removes: add --clean")
    if not has_cache(directory):
        raise StorageError(f"there is no cache in {str(directory)!r}")
    if not is_clean:
        finish(_describe(directory), _show)
        return
    before_ns = None if older_than is None else time.time_ns() - int(older_than * 1e9)
    removed = asdict(clean_cache(directory, before_ns=before_ns))
    finish({"directory": str(directory), **removed}, _show_removed)


def _describe(directory: Path) -> dict[str, Any]:
    contents = inspect(directory)
    files = [asdict(file) for file in contents.files]
    for file in files:
        last_used = datetime.fromtimestamp(file.pop("used_ns") / 1e9, UTC)
        file["last_used"] = last_used.isoformat(timespec="seconds")
    return {
        "directory": str(directory),
        **asdict(contents.usage),
        "num_bytes": contents.num_bytes,
        "num_blocks": contents.num_blocks,
        "num_unreadable": contents.num_unreadable,
        "num_parts": contents.num_parts,
        "files": files,
    }


def _show_removed(document: dict[str, Any]) -> None:
    blocks = plural(document["num_blocks"], "block")
    leftovers = plural(document["num_parts"], "leftover")
    write_line(f"removed {blocks} and {leftovers}: {format_bytes(document['num_bytes'])}")
    if document["num_in_use"]:
        write_line(f"{plural(document['num_in_use'], 'block')} stayed: in use")


def _show(document: dict[str, Any]) -> None:
    """Write the cache as a whole, and a row a file."""
    limit = f" of {format_bytes(document['max_bytes'])}" if document["max_bytes"] else ""
    rows = [
        ["space", f"{format_bytes(document['num_bytes'])}{limit}"],
        ["blocks", format_count(document["num_blocks"])],
        ["being fetched", format_count(document["num_parts"])],
        *([name, format_count(document[name])] for name in ("hits", "misses", "evictions")),
        ["damaged", format_count(document["damaged"] + document["num_unreadable"])],
    ]
    write_table(["cache", clean(document["directory"])], rows)
    if not document["files"]:
        return
    write_line()
    write_table(
        ["file", ">blocks", ">kept", ">of", "version", "last used"],
        [
            [
                file["url"],
                format_count(file["num_blocks"]),
                format_bytes(file["num_bytes"]),
                format_bytes(file["file_bytes"]),
                file["version"],
                file["last_used"],
            ]
            for file in document["files"]
        ],
    )
