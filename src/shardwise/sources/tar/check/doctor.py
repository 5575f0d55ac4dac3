"""Looking for what is odd about a shard: nothing that stops reading, or why it does.

Imports numpy, `shardwise.errors`, storage and this package.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from shardwise.errors import ShardwiseError
from shardwise.sources.tar.check.verify import Problem, problem_of
from shardwise.sources.tar.index.acceptance import unfinished
from shardwise.sources.tar.index.index_store import open_uncached
from shardwise.sources.tar.scan.compressed import refuse_compressed
from shardwise.sources.tar.scan.members import Members, scan_members
from shardwise.sources.tar.scan.names import split_names
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import StorageOptions

__all__ = ["ShardFacts", "examine_shard"]

# Below this, opening shards costs more than reading them; above, a shard is too long a thing.
_SMALL_BYTES = 4 << 20
_LARGE_BYTES = 20 << 30
_UNEVEN = 20
_MANY_FIELDS = 32


@dataclass
class ShardFacts:
    """What a shard is like.

    Attributes:
        url: the shard.
        num_bytes: its size.
        num_members: regular files in it that are fields of samples.
        num_samples: groups of adjacent members of one key.
        fields: how many samples have each field.
        ignored: members that can't be fields, by why.
        sample_bytes: the smallest, the median and the largest sample's payload bytes.
        findings: what is odd, worst first.
    """

    url: str
    num_bytes: int = 0
    num_members: int = 0
    num_samples: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    sample_bytes: tuple[int, int, int] = (0, 0, 0)
    findings: list[Problem] = field(default_factory=list)


@dataclass
class _Notes:
    """What is noticed while the members go by: for each oddity how often, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[str, str, int]] = field(default_factory=dict)

    def note(self, what: str, key: str, name: str, offset: int) -> None:
        self.counts[what] += 1
        self.first.setdefault(what, (key, name, offset))


_ADVICE = {
    "members of one key that stand apart": "reading refuses this: pack the shard again with its "
    "members sorted by name (`tar --sort=name`)",
    "members for a field that the sample has already": "reading refuses this: rename one of them "
    "when packing",
    "fields in upper case": "they are read in lower case: 'JPG' as 'jpg'",
    "fields with a number first": "a key ends at the first dot of the base name, so `img.0001.jpg` "
    "is the field '0001.jpg' of the sample 'img': rename if that is not meant",
    "names that are not sorted": "nothing is lost, but tools that sort by name give another order",
    "empty payloads": "most decoders refuse them",
}


def examine_shard(url: str, *, options: StorageOptions | None = None) -> ShardFacts:
    """Look at all headers of a shard; payloads are not read. Never raises for what it finds.

    Args:
        url: the shard.
        options: how a remote shard is reached; None for the defaults.
    """
    facts = ShardFacts(url)
    notes = _Notes()
    try:
        refuse_compressed(url)
        file = open_uncached(url, options)
        facts.num_bytes = file.stat().num_bytes
        scan = Scan(file, facts.num_bytes, url=url)
        groups = _Groups(facts, notes)
        for members in scan_members(scan, facts.ignored):
            groups.add(members)
        groups.finish()
        facts.ignored = +facts.ignored
    except ShardwiseError as error:
        facts.findings.append(problem_of(error, url))
        return facts
    for what, hint in _ADVICE.items():
        if notes.counts[what]:
            key, name, offset = notes.first[what]
            facts.findings.append(
                Problem(url, f"{notes.counts[what]} {what}", hint, key, name, offset)
            )
    facts.findings += _findings(facts, has_end=scan.has_end)
    return facts


class _Groups:
    """Members to samples, taking note of what is odd instead of raising."""

    def __init__(self, facts: ShardFacts, notes: _Notes) -> None:
        self.facts = facts
        self.notes = notes
        self._seen: set[str] = set()
        self._key: str | None = None
        self._fields: set[str] = set()
        self._sizes: list[int] = []
        self._last_name = b""

    def add(self, members: Members) -> None:
        rows, dots = split_names(members.names, members.lengths, self.facts.ignored)
        for row, dot in zip(rows.tolist(), dots.tolist(), strict=True):
            name = members.name(row)
            key, extension = (
                part.decode("utf-8", "surrogateescape") for part in (name[:dot], name[dot + 1 :])
            )
            self._take(name, key, extension, int(members.offsets[row]), int(members.sizes[row]))

    def _take(self, name: bytes, key: str, extension: str, offset: int, size: int) -> None:
        note = self.notes.note
        field = extension.lower()
        if key != self._key:
            if key in self._seen:
                note("members of one key that stand apart", key, field, offset)
            self._seen.add(key)
            self._key, self._fields = key, set()
            self._sizes.append(0)
            self.facts.num_samples += 1
        if field in self._fields:
            note("members for a field that the sample has already", key, field, offset)
        if extension != field:
            note("fields in upper case", key, field, offset)
        if field[0].isdigit() and "." in field:
            note("fields with a number first", key, field, offset)
        if name < self._last_name:
            note("names that are not sorted", key, field, offset)
        if not size:
            note("empty payloads", key, field, offset)
        self._last_name = name
        self._fields.add(field)
        self._sizes[-1] += size
        self.facts.num_members += 1
        self.facts.fields[field] += 1

    def finish(self) -> None:
        if self._sizes:
            sizes = np.array(self._sizes)
            self.facts.sample_bytes = (int(sizes.min()), int(np.median(sizes)), int(sizes.max()))


def _findings(facts: ShardFacts, *, has_end: bool) -> list[Problem]:
    """What the counts tell."""
    found: list[tuple[str, str]] = []
    if not has_end:
        found.append((unfinished(facts.num_samples), ""))
    if not facts.num_samples:
        found.append(("no samples", "harmless, but is it meant?"))
    for name, count in facts.fields.items():
        if count < facts.num_samples and len(facts.fields) <= _MANY_FIELDS:
            found.append((
                f"{facts.num_samples - count} of {facts.num_samples} samples lack the field "
                f"{name!r}", "it is None for those",
            ))  # fmt: skip
    if len(facts.fields) > _MANY_FIELDS:
        found.append((
            f"{len(facts.fields)} different fields",
            "a key ends at the first dot of the base name: do keys hold dots?",
        ))  # fmt: skip
    for what, count in facts.ignored.items():
        found.append((f"{count} members left out: {what}", _LEFT_OUT.get(what, "")))
    smallest, median, largest = facts.sample_bytes
    if largest > _UNEVEN * max(1, median):
        found.append((
            f"samples from {smallest} to {largest} bytes, half of them below {median}",
            "batches take very different times",
        ))  # fmt: skip
    if facts.num_bytes < _SMALL_BYTES:
        found.append((
            f"a small shard of {facts.num_bytes} bytes",
            "100 MB to some GB read best where shards lie on a network",
        ))  # fmt: skip
    if facts.num_bytes > _LARGE_BYTES:
        found.append((
            f"a large shard of {facts.num_bytes} bytes",
            "the fewer shards, the less a window shuffle mixes",
        ))  # fmt: skip
    return [Problem(facts.url, message, hint) for message, hint in found]


_LEFT_OUT = {
    "directory": "harmless",
    "link": "its payload is another member's: pack the shard again with --hard-dereference and "
    "--dereference",
    "special file": "it holds no data",
    "unknown type": "tar readers do not know what they are, and what they hold is not read: pack "
    "the shard again if it is data",
    "metadata": "names of the form __x__ are kept for programs",
    "hidden": "base names that begin with a dot, such as the ._* files of macOS (pack with "
    "COPYFILE_DISABLE=1)",
    "no extension": "a name without a dot gives no field: rename it when packing if it is data",
}
