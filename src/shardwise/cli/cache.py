"""`shardwise cache`: what lies in a cache of remote files, and emptying it.

Imports the storage layer.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from shardwise.cli.options import common_options
from shardwise.cli.output import (
    clean,
    format_bytes,
    format_count,
    plural,
    write_document,
    write_line,
    write_table,
)
from shardwise.errors import StorageError
from shardwise.storage.cache.inspect import CacheContents, has_cache, inspect
from shardwise.storage.cache.inspect import clean as clean_cache

__all__ = ["cache"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

directory_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path)
)


def _age(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """A time span such as 90s, 30m, 12h, 7d, 2w, in seconds."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value)
    if not found:
        raise click.BadParameter(f"{value!r} is no age: give one such as 30m, 12h, 7d or 2w")
    return float(found[1]) * _UNITS[found[2]]


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--clean", "is_clean", is_flag=True, help="Remove all blocks that are not in use.")
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_age,
    help="With --clean: only blocks that were not used for so long: 30m, 12h, 7d, 2w.",
)
@common_options
def cache(directory: Path, is_clean: bool, older_than: float | None, as_json: bool) -> None:
    """Show what is kept of remote files in the cache in DIR, or remove it.

    DIR is what was given as `cache=`. Processes may be using the cache: what they are reading
    stays. Only files that the cache wrote are removed. Exit code 1 if there is no cache.
    """
    if older_than is not None and not is_clean:
        raise click.UsageError("--older-than says what --clean removes: add --clean")
    if not has_cache(directory):
        raise StorageError(f"there is no cache in {str(directory)!r}")
    if not is_clean:
        contents = inspect(directory)
        if as_json:
            write_document(_describe(directory, contents))
        else:
            _show(directory, contents)
        return
    before_ns = None if older_than is None else time.time_ns() - int(older_than * 1e9)
    done = clean_cache(directory, before_ns=before_ns)
    if as_json:
        write_document({"directory": str(directory), **asdict(done)})
        return
    write_line(
        f"removed {plural(done.num_blocks, 'block')} and {plural(done.num_parts, 'leftover')}: "
        f"{format_bytes(done.num_bytes)}"
    )
    if done.num_in_use:
        write_line(f"{plural(done.num_in_use, 'block')} stayed: in use")


def _describe(directory: Path, contents: CacheContents) -> dict[str, Any]:
    """The contents as JSON."""
    usage = contents.usage
    return {
        "directory": str(directory),
        "num_bytes": contents.num_bytes,
        "max_bytes": usage.max_bytes,
        "num_blocks": contents.num_blocks,
        "num_unreadable": contents.num_unreadable,
        "num_parts": contents.num_parts,
        "hits": usage.hits,
        "misses": usage.misses,
        "evictions": usage.evictions,
        "damaged": usage.damaged,
        "files": [
            {
                "url": kept.url,
                "version": kept.version,
                "file_bytes": kept.file_bytes,
                "num_blocks": kept.num_blocks,
                "num_bytes": kept.num_bytes,
                "last_used": _time(kept.used_ns),
            }
            for kept in contents.files
        ],
    }


def _show(directory: Path, contents: CacheContents) -> None:
    """Write the cache as a whole, and a row a file."""
    usage = contents.usage
    limit = f" of {format_bytes(usage.max_bytes)}" if usage.max_bytes else ""
    rows = [
        ["space", f"{format_bytes(contents.num_bytes)}{limit}"],
        ["blocks", format_count(contents.num_blocks)],
        ["being fetched", format_count(contents.num_parts)],
        ["hits", format_count(usage.hits)],
        ["misses", format_count(usage.misses)],
        ["evictions", format_count(usage.evictions)],
        ["damaged", format_count(usage.damaged + contents.num_unreadable)],
    ]
    write_table(["cache", clean(str(directory))], rows)
    if not contents.files:
        return
    write_line()
    write_table(
        ["file", ">blocks", ">kept", ">of", "version", "last used"],
        [
            [
                kept.url,
                format_count(kept.num_blocks),
                format_bytes(kept.num_bytes),
                format_bytes(kept.file_bytes),
                kept.version,
                _time(kept.used_ns),
            ]
            for kept in contents.files
        ],
    )


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")
