"""Checking a shard: `examine_shard` reads its headers and index, `verify_shard` every byte.

What can't be known: whether the last samples of a shard were replaced by zeros before it was first
indexed; that shard is a whole, shorter one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from shardwise.base.arguments import directory_text
from shardwise.base.errors import ShardwiseError
from shardwise.base.plugins import find
from shardwise.base.shown import in_command
from shardwise.extensions.tools.oddities import Oddities
from shardwise.sources.tar.index.build import build_index, payload_digests
from shardwise.sources.tar.index.index_store import IndexStore, SavedIndex, open_uncached
from shardwise.sources.tar.index.listed_shards import ListedShards, is_manifest_file, manifest_files
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.index.shard_version import changed, unfinished
from shardwise.sources.tar.problems import Problem, problem_of
from shardwise.storage import StorageOptions, is_local


@dataclasses.dataclass
class ShardReport:
    """A shard's headers, kept index, the one `built` of them (None: `damage`), and problems.

    `num_read` counts the bytes of payloads that were read.
    """

    url: str
    oddities: Oddities
    saved: SavedIndex | None = None
    built: ShardIndex | None = None
    damage: Problem | None = None
    problems: list[Problem] = dataclasses.field(default_factory=list)
    num_read: int = 0

    @property
    def num_bytes(self) -> int:
        """The shard's size; 0 where it can't be opened."""
        return 0 if self.saved is None else self.saved.stat.num_bytes

    @property
    def index(self) -> ShardIndex | None:
        """The index that reading would use: the one kept if it is fresh, else `built`."""
        if self.saved is not None and self.saved.state == "fresh":
            return self.saved.index
        return self.built

    @property
    def has_digests(self) -> bool:
        """Whether the index that is kept, fresh or stale, has digests."""
        index = None if self.saved is None else self.saved.index
        return index is not None and index.header.has_digests

    @property
    def findings(self) -> list[Problem]:
        """The oddities, or the damage alone if the headers could not be scanned to the end."""
        findings = [] if self.damage is None else [self.damage]
        if self.oddities.is_complete:
            has_end = self.built is None or self.built.header.has_end
            findings += self.oddities.findings(num_bytes=self.num_bytes, has_end=has_end)
        return findings


def examine_shard(url: str, *, store: IndexStore) -> ShardReport:
    """Scan headers and load the index, reading no payloads; damage is reported, not raised."""
    report = ShardReport(url, Oddities(url))
    try:
        report.saved = store.look(url)
        report.built = build_index(
            url, options=store.options, accept_unfinished=True, watch=report.oddities.watch
        )
    except ShardwiseError as error:
        report.damage = problem_of(error, url)
    return report


def verify_shard(
    url: str,
    *,
    index: str | os.PathLike[str] | None = None,
    options: StorageOptions | None = None,
    accept_unfinished: bool = False,
    progress: Callable[[int], object] | None = None,
) -> ShardReport:
    """Read a shard and its index whole and compare them.

    Checks the headers with their checksums, the end (which may be missing if accepted), the
    index's entry for each sample and, where the index has digests, every payload. `progress`
    is called with the bytes of payloads read so far. The report's `problems` are empty for a sound
    shard.
    """

    def count(num_bytes: int) -> None:
        report.num_read += num_bytes
        if progress is not None:
            progress(report.num_read)

    store = IndexStore(None if index is None else directory_text("index", index), options)
    report = examine_shard(url, store=store)
    report.problems += header_problems(report, store, accept_unfinished=accept_unfinished)
    built, index_used = report.built, report.index
    if built is not None and index_used is not None and index_used is not built:
        report.problems += _differences(url, index_used, built)
    if index_used is not None:
        report.problems += _payload_problems(url, index_used, options, count)
        if index_used.header.removed:
            report.problems += find("removal", "check")(url, index_used, store)
    return report


def header_problems(
    report: ShardReport, store: IndexStore, *, accept_unfinished: bool
) -> Iterator[Problem]:
    """The defects of an examined shard: its index, its headers, its end."""
    saved, built, url = report.saved, report.built, report.url
    if saved is not None and saved.error is not None:
        yield problem_of(saved.error, url)
    elif saved is not None and saved.index is not None and saved.state == "stale":
        command = f"{store.command} {in_command(url)}"
        hint = f"get the shard again, or bring the index up to date: `{command}`"
        yield Problem(url, changed(saved.index.header, saved.stat), hint)
    if report.damage is not None:
        yield report.damage
    if built is not None and not built.header.has_end and not accept_unfinished:
        command = f"truncate --size=+1024 {in_command(url)}"
        hint = f"`{command}` ends it; then index it again" if is_local(url) else ""
        yield Problem(url, unfinished(built.num_samples), hint, offset=built.num_bytes)


def wrong_entries(
    urls: Sequence[str], index_dir: str | None, known: Collection[str | None]
) -> Iterator[Problem]:
    """Shards that are not as the manifest files among the URLS list them, but for `known` ones."""
    store = IndexStore(index_dir, accept_unfinished=True)
    names = filter(is_manifest_file, urls)
    for manifest in [file for name in names for file in manifest_files(name, store.options)]:
        listed = ListedShards(manifest, store)
        for number, url in enumerate(listed.manifest.urls):
            if url in known:
                continue
            try:
                listed.check(number, save=False)
            except ShardwiseError as error:
                yield problem_of(error, url)


def _differences(url: str, saved: ShardIndex, built: ShardIndex) -> Iterator[Problem]:
    """Yield a problem for each sample that differs between the index and the shard."""
    command = f"shardwise index --force {in_command(url)}"
    hint = f"get the shard anew, or make its index anew with `{command}`"
    if (saved.num_samples, saved.fields) != (built.num_samples, built.fields):
        yield Problem(
            url,
            f"the index says {saved.num_samples} samples with the fields {saved.fields}, the "
            f"shard has {built.num_samples} with {built.fields}",
            hint,
        )
        return
    for row, (indexed, actual) in enumerate(zip(saved.keys, built.keys, strict=True)):
        if indexed != actual:
            keys = f"{indexed!r} in the index and {actual!r} in the shard"
            yield Problem(url, f"sample {row} has the key {keys}", hint, key=actual)
    rows = np.arange(saved.num_samples)
    for field in saved.fields:
        (saved_offset, saved_size), (offset, size) = (
            each.locate(field, rows) for each in (saved, built)
        )
        wrong = np.flatnonzero((saved_size != size) | ((saved_offset != offset) & (size >= 0)))
        for row in wrong.tolist():
            yield Problem(
                url,
                f"the index says {saved_size[row]} bytes at {saved_offset[row]}, the shard has "
                f"{size[row]} at {offset[row]} (-1: no such field)",
                hint,
                key=built.keys[row],
                field=field,
                offset=int(offset[row]),
            )


def _payload_problems(
    url: str,
    index: ShardIndex,
    options: StorageOptions | None,
    progress: Callable[[int], object],
) -> Iterator[Problem]:
    try:
        file = open_uncached(url, options)
        for field, rows, digests in payload_digests(file, index, progress=progress):
            indexed = index.digests(field)
            wrong = rows[:0] if indexed is None else rows[indexed[rows] != digests]
            offsets, _ = index.locate(field, wrong)
            for row, offset in zip(wrong.tolist(), offsets.tolist(), strict=True):
                yield Problem(
                    url,
                    "the payload is not the one that was indexed: its CRC-32 differs",
                    "get the shard anew",
                    key=index.keys[row],
                    field=field,
                    offset=offset,
                )
    except ShardwiseError as error:
        yield problem_of(error, url)
