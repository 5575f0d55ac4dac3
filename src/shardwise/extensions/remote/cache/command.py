"""`shardwise cache`: what lies in a cache of remote files, and emptying it.

Touches files that the cache wrote, and no others.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
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
from shardwise.extensions.remote.cache.block_file import remove_block
from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.extensions.remote.cache.eviction import sweep_parts
from shardwise.extensions.remote.cache.open_block import DamagedError, OpenBlock
from shardwise.extensions.remote.cache.usage import UsageFile, read_usage, scan_blocks, scan_parts

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
    folder = f"{directory}/{FOLDER}"
    if not Path(folder, "blocks").is_dir():
        raise StorageError(f"there is no cache in {str(directory)!r}")
    if not is_clean:
        finish({"directory": str(directory), **_describe(folder)}, _show)
        return
    before_ns = None if older_than is None else time.time_ns() - int(older_than * 1e9)
    finish({"directory": str(directory), **_clean(folder, before_ns)}, _show_removed)


@dataclass
class KeptFile:
    """The cached blocks of one version of a file, as `BlockInfo` names it."""

    url: str
    version: str
    file_bytes: int
    num_blocks: int = 0
    num_bytes: int = 0
    last_used: str = ""


def _describe(folder: str) -> dict[str, Any]:
    """List all blocks; writes nothing. Raises OSError where the cache can't be read."""
    files: dict[tuple[str, str], KeptFile] = {}
    num_blocks = num_bytes = num_unreadable = 0
    for entry in scan_blocks(folder):
        num_blocks += 1
        num_bytes += entry.space
        try:
            block = OpenBlock.open(f"{folder}/blocks/{entry.name}", entry.name)
        except (OSError, DamagedError):
            block = None
        if block is None:
            num_unreadable += 1
            continue
        info = block.info
        key = (info.url, info.version)
        kept = files.setdefault(key, KeptFile(*key, info.file_bytes))
        kept.num_blocks += 1
        kept.num_bytes += info.num_bytes
        used = datetime.fromtimestamp(entry.used_ns / 1e9, UTC).isoformat(timespec="seconds")
        kept.last_used = max(kept.last_used, used)
    parts = list(scan_parts(folder))
    return {
        **asdict(read_usage(folder)),
        "num_bytes": num_bytes + sum(part.space for part in parts),
        "num_blocks": num_blocks,
        "num_unreadable": num_unreadable,
        "num_parts": len(parts),  # being fetched, or left by processes that died
        "files": [asdict(files[key]) for key in sorted(files)],
    }


def _clean(folder: str, before_ns: int | None) -> dict[str, int]:
    """Remove blocks last used before this time, and parts of dead processes; count both."""
    num_blocks = num_in_use = 0
    with UsageFile(folder).lock() as usage:
        before = usage.num_bytes
        num_parts = sweep_parts(folder, usage)
        for entry in list(scan_blocks(folder)):
            if before_ns is not None and entry.used_ns >= before_ns:
                continue
            freed = remove_block(f"{folder}/blocks/{entry.name}")
            usage.num_bytes -= freed
            num_blocks += bool(freed)
            num_in_use += not freed
        freed = before - usage.num_bytes
    counts = {"num_blocks": num_blocks, "num_parts": num_parts}
    return {**counts, "num_bytes": freed, "num_in_use": num_in_use}


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
