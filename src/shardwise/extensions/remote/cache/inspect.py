"""The contents of a cache, and how it is emptied: for `shardwise cache`.

Touches files that the cache wrote, and no others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shardwise.extensions.remote.cache.cache import FOLDER
from shardwise.extensions.remote.cache.eviction import remove_block, sweep_parts
from shardwise.extensions.remote.cache.open_block import DamagedError, OpenBlock
from shardwise.extensions.remote.cache.usage import Usage, UsageFile, scan_blocks, scan_parts


@dataclass
class KeptFile:
    """The cached blocks of one version of a file, as `BlockInfo` names it.

    Attributes:
        num_bytes: of the blocks.
        used_ns: the last use of any of them, in nanoseconds since 1970.
    """

    url: str
    version: str
    file_bytes: int
    num_blocks: int = 0
    num_bytes: int = 0
    used_ns: int = 0


@dataclass
class CacheContents:
    """The contents of a cache.

    Attributes:
        files: sorted by URL.
        num_bytes: disk space of blocks and parts.
        num_unreadable: blocks that can't be read, or whose trailer is damaged.
        num_parts: blocks that are being fetched, or were when their process died.
    """

    files: list[KeptFile]
    num_blocks: int
    num_bytes: int
    num_unreadable: int
    num_parts: int
    usage: Usage


@dataclass
class Cleaned:
    """Numbers of the blocks and of dead processes' parts that were removed; their disk space.

    Attributes:
        num_in_use: blocks that stay because they are being read.
    """

    num_blocks: int = 0
    num_parts: int = 0
    num_bytes: int = 0
    num_in_use: int = 0


def has_cache(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory has a cache."""
    return (Path(directory) / FOLDER / "blocks").is_dir()


def inspect(directory: str | os.PathLike[str]) -> CacheContents:
    """List all blocks of the cache in a directory; writes nothing.

    Raises:
        OSError: the cache is missing, or can't be read.
    """
    folder = f"{directory}/{FOLDER}"
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
        kept = files.setdefault(key, KeptFile(info.url, info.version, info.file_bytes))
        kept.num_blocks += 1
        kept.num_bytes += info.num_bytes
        kept.used_ns = max(kept.used_ns, entry.used_ns)
    parts = list(scan_parts(folder))
    return CacheContents(
        files=sorted(files.values(), key=lambda kept: (kept.url, kept.version)),
        num_blocks=num_blocks,
        num_bytes=num_bytes + sum(part.space for part in parts),
        num_unreadable=num_unreadable,
        num_parts=len(parts),
        usage=UsageFile(folder).read(),
    )


def clean(directory: str | os.PathLike[str], *, before_ns: int | None = None) -> Cleaned:
    """Remove blocks, and parts of dead processes; blocks that are being read stay.

    Args:
        directory: of the cache.
        before_ns: only blocks last used before this time, in nanoseconds since 1970; None for all.

    Raises:
        OSError: the cache is missing, or can't be changed.
    """
    cleaned = Cleaned()
    folder = f"{directory}/{FOLDER}"
    with UsageFile(folder).lock() as usage:
        before = usage.num_bytes
        cleaned.num_parts = sweep_parts(folder, usage)
        for entry in list(scan_blocks(folder)):
            if before_ns is not None and entry.used_ns >= before_ns:
                continue
            freed = remove_block(f"{folder}/blocks/{entry.name}")
            usage.num_bytes -= freed
            cleaned.num_blocks += bool(freed)
            cleaned.num_in_use += not freed
        cleaned.num_bytes = before - usage.num_bytes
    return cleaned
