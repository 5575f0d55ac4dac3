"""Oddities of a shard, which a scan counts and a reader may accept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from shardwise.sources.tar.index.shard_version import unfinished
from shardwise.sources.tar.problems import Problem
from shardwise.sources.tar.scan.elsewhere import Members
from shardwise.sources.tar.scan.names import split_names

# Below 4 MiB, opening shards takes longer than reading them.
_SMALL_BYTES = 4 << 20
# Above 20 GiB, a data set has few shards, and a window shuffle mixes few of them.
_LARGE_BYTES = 20 << 30
# The largest sample against the median one, in bytes.
_UNEVEN_RATIO = 20
_MANY_FIELDS = 32

_HINTS = {
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

_IGNORED_HINTS = {
    "directory": "harmless",
    "hard link": "it leads to no member before it: pack the shard again with --hard-dereference",
    "symbolic link": "tar stores no data of it: pack the shard again with --dereference",
    "part of another volume's member": "pack the shard again without --multi-volume",
    "special file": "it holds no data",
    "unknown type": "tar readers do not know what they are, and what they hold is not read: pack "
    "the shard again if it is data",
    "metadata": "names of the form __x__ are kept for programs",
    "hidden": "base names that begin with a dot, such as the ._* files of macOS (pack with "
    "COPYFILE_DISABLE=1)",
    "no extension": "a name without a dot gives no field: rename it when packing if it is data",
}


class Oddities:
    """Counts of one shard's members and samples, and the first position of each oddity."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.num_members = 0
        self.fields: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self.is_complete = False
        self._counts: Counter[str] = Counter()
        self._first: dict[str, Problem] = {}
        self._keys: set[str] = set()
        self._key: str | None = None
        self._sample_fields: set[str] = set()
        self._sample_bytes: list[int] = []
        self._last_name = b""

    @property
    def num_samples(self) -> int:
        """Groups of adjacent members of one key."""
        return len(self._sample_bytes)

    @property
    def sample_bytes(self) -> tuple[int, int, int]:
        """The smallest, the median and the largest sample's payload bytes; zeros without any."""
        sizes = np.array(self._sample_bytes or [0])
        return int(sizes.min()), int(np.median(sizes)), int(sizes.max())

    def watch(self, chunks: Iterable[Members], ignored: Counter[str]) -> Iterator[Members]:
        """Pass a shard's members through, and count what is odd about them."""
        self.ignored = ignored
        for members in chunks:
            # The scan counts these itself.
            rows, dots = split_names(members.names, members.lengths, Counter())
            for row, dot in zip(rows.tolist(), dots.tolist(), strict=True):
                self._add(
                    members.name(row), dot, int(members.offsets[row]), int(members.sizes[row])
                )
            yield members
        self.is_complete = True

    def _add(self, name: bytes, dot: int, offset: int, size: int) -> None:
        key, extension = (
            part.decode("utf-8", "surrogateescape") for part in (name[:dot], name[dot + 1 :])
        )
        field = extension.lower()
        is_apart = False
        if key != self._key:
            is_apart = key in self._keys
            self._keys.add(key)
            self._key, self._sample_fields = key, set()
            self._sample_bytes.append(0)
        for what, is_odd in (
            ("members of one key that stand apart", is_apart),
            ("members for a field that the sample has already", field in self._sample_fields),
            ("fields in upper case", extension != field),
            ("fields with a number first", field[0].isdigit() and "." in field),
            ("names that are not sorted", name < self._last_name),
            ("empty payloads", not size),
        ):
            if is_odd:
                if what not in self._counts:
                    self._first[what] = Problem(self.url, what, _HINTS[what], key, field, offset)
                self._counts[what] += 1
        self._last_name = name
        self._sample_fields.add(field)
        self._sample_bytes[-1] += size
        self.num_members += 1
        self.fields[field] += 1

    def findings(self, *, num_bytes: int, has_end: bool) -> Iterator[Problem]:
        """The oddities, each once, of a shard of this size, with or without an end."""
        for what in filter(self._counts.__contains__, _HINTS):
            yield replace(self._first[what], message=f"{what}: {self._counts[what]}")
        if not has_end:
            yield Problem(self.url, unfinished(self.num_samples))
        for message, hint in (*self._of_fields(), *self._of_sizes(num_bytes)):
            yield Problem(self.url, message, hint)

    def _of_fields(self) -> Iterator[tuple[str, str]]:
        if not self.num_samples:
            yield "no samples", "harmless, but is it meant?"
        if len(self.fields) > _MANY_FIELDS:
            hint = "a key ends at the first dot of the base name: do keys hold dots?"
            yield f"{len(self.fields)} different fields", hint
        else:
            for name, count in self.fields.items():
                num_without = self.num_samples - count
                if num_without > 0:
                    lack = f"{num_without} of {self.num_samples} samples lack the field {name!r}"
                    yield lack, "a batch has None there, and select() of it is an error"
        for what, count in self.ignored.items():
            if count:
                yield f"members left out, {what}: {count}", _IGNORED_HINTS.get(what, "")

    def _of_sizes(self, num_bytes: int) -> Iterator[tuple[str, str]]:
        smallest, median, largest = self.sample_bytes
        if largest > _UNEVEN_RATIO * max(1, median):
            sizes = f"samples from {smallest:,} to {largest:,} bytes, half of them below {median:,}"
            yield sizes, "batches take very different times to load"
        if num_bytes < _SMALL_BYTES:
            hint = "100 MB to some GB read best where shards lie on a network"
            yield f"a small shard of {num_bytes:,} bytes", hint
        if num_bytes > _LARGE_BYTES:
            hint = "the fewer shards, the less a window shuffle mixes"
            yield f"a large shard of {num_bytes:,} bytes", hint
