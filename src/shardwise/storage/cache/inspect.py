"""What lies in a cache, and how it is emptied: for people, not for readers of data.

Looks at files that the cache wrote, and at no others. Imports this package.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shardwise.storage.cache.blocks import BLOCK_NAME
from shardwise.storage.cache.cache import FOLDER
from shardwise.storage.cache.eviction import PART_NAME, Room, remove_block, scan, sweep_parts
from shardwise.storage.cache.open_block import Held
from shardwise.storage.cache.usage import Books, Ledger

__all__ = ["Cleaned", "KeptFile", "Survey", "clean", "has_cache", "survey"]


@dataclass
class KeptFile:
    """What is kept of one version of a file.

    Attributes:
        url: its URL, without a query.
        version: its ETag, or its time.
        file_bytes: its whole length.
        num_blocks: how many blocks of it are there.
        num_bytes: how many of its bytes they hold.
        used_ns: when one of them was used last, in nanoseconds since 1970.
    """

    url: str
    version: str
    file_bytes: int
    num_blocks: int = 0
    num_bytes: int = 0
    used_ns: int = 0


@dataclass
class Survey:
    """What lies in a cache.

    Attributes:
        files: what is kept, by URL.
        num_blocks: all blocks.
        num_bytes: the disk space that they and the parts take.
        num_unreadable: blocks that can't be read, or are damaged in what says what they are.
        num_parts: blocks that are being fetched, or were when their process died.
        books: what the cache's processes counted.
    """

    files: list[KeptFile]
    num_blocks: int
    num_bytes: int
    num_unreadable: int
    num_parts: int
    books: Books


@dataclass
class Cleaned:
    """What was removed: blocks, leftovers of dead processes, and their disk space.

    Attributes:
        num_in_use: blocks that were to go, and stay because they are being read.
    """

    num_blocks: int = 0
    num_parts: int = 0
    num_bytes: int = 0
    num_in_use: int = 0


def has_cache(directory: str | os.PathLike[str]) -> bool:
    """Whether a cache lies in a directory."""
    return (Path(directory) / FOLDER / "blocks").is_dir()


def survey(directory: str | os.PathLike[str]) -> Survey:
    """Look at all blocks of the cache in a directory; writes nothing.

    Raises:
        OSError: there is no cache, or it can't be read.
    """
    folder = f"{directory}/{FOLDER}"
    files: dict[tuple[str, str], KeptFile] = {}
    num_blocks = num_bytes = num_unreadable = 0
    for seen in scan(f"{folder}/blocks", BLOCK_NAME):
        num_blocks += 1
        num_bytes += seen.space
        try:
            held = Held.open(f"{folder}/blocks/{seen.name}", seen.name)
        except OSError:
            held = None
        if not isinstance(held, Held):
            num_unreadable += 1
            continue
        info = held.info
        key = (info.url, info.version)
        kept = files.setdefault(key, KeptFile(info.url, info.version, info.file_bytes))
        kept.num_blocks += 1
        kept.num_bytes += info.num_bytes
        kept.used_ns = max(kept.used_ns, seen.used_ns)
    parts = list(scan(f"{folder}/parts", PART_NAME))
    return Survey(
        files=sorted(files.values(), key=lambda kept: (kept.url, kept.version)),
        num_blocks=num_blocks,
        num_bytes=num_bytes + sum(part.space for part in parts),
        num_unreadable=num_unreadable,
        num_parts=len(parts),
        books=_ledger(folder).peek(),
    )


def clean(directory: str | os.PathLike[str], *, before_ns: int | None = None) -> Cleaned:
    """Remove blocks, and what dead processes left; blocks that are being read stay.

    Args:
        directory: where the cache lies.
        before_ns: only blocks that were used last before this time, in nanoseconds since 1970;
            None for all.

    Raises:
        OSError: there is no cache, or it can't be changed.
    """
    done = Cleaned()
    folder = f"{directory}/{FOLDER}"
    blocks, parts = f"{folder}/blocks", f"{folder}/parts"
    with _ledger(folder).hold() as books:
        before = books.num_bytes
        done.num_parts = sweep_parts(parts, books)
        for seen in list(scan(blocks, BLOCK_NAME)):
            if before_ns is not None and seen.used_ns >= before_ns:
                continue
            freed = remove_block(f"{blocks}/{seen.name}")
            books.num_bytes -= freed
            done.num_blocks += bool(freed)
            done.num_in_use += not freed
        done.num_bytes = before - books.num_bytes
    return done


def _ledger(folder: str) -> Ledger:
    return Ledger(f"{folder}/ledger", Room(f"{folder}/blocks", f"{folder}/parts").count)
