"""Members whose bytes lie elsewhere: hard links, symbolic links, parts of multi-volume archives.

A hard link has the payload of the last member of its target's name before it, as GNU tar and
Python's tarfile read it. Other members of such kinds have no payload in the shard: one that is a
field of a sample is an error, and the others are counted, so that nothing vanishes silently.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.sources.tar.scan.names import split_names
from shardwise.sources.tar.scan.walk import HeaderScan, shown

_HARD, _SYMBOLIC, _CONTINUED = b"12M"
# The kinds of headers, and what they are called in counts.
ELSEWHERE = {
    _HARD: "hard link",
    _SYMBOLIC: "symbolic link",
    _CONTINUED: "part of another volume's member",
}
_TARGET = slice(157, 257)


@dataclass
class Members:
    """Regular files that follow one another in a shard.

    Attributes:
        names: uint8 `[n, width]`, the names padded with zeros; width is a multiple of 8.
        lengths: int64 `[n]`, bytes of each name.
        offsets: int64 `[n]`, where each payload starts: a multiple of 512.
        sizes: int64 `[n]`, payload bytes.
    """

    names: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, rows: NDArray[Any]) -> Members:
        """Some members: rows by number, or bool `[n]`."""
        return Members(self.names[rows], self.lengths[rows], self.offsets[rows], self.sizes[rows])

    def name(self, row: int) -> bytes:
        return self.names[row, : self.lengths[row]].tobytes()


class EarlierMembers:
    """The positions of earlier members' payloads, by name. Nothing is kept before the first link.

    The members before that are collected by a second walk: shards without links cost nothing.
    `walk_before` yields the regular files of a scan.
    """

    def __init__(
        self, scan: HeaderScan, walk_before: Callable[[HeaderScan], Iterator[Members]]
    ) -> None:
        self._scan = scan
        self._walk_before = walk_before
        self._places: dict[bytes, tuple[int, int]] | None = None
        self._can_look_back = True

    def add(self, members: Members) -> None:
        """Add the next regular files, once there was a link."""
        if self._places is not None:
            places = zip(members.offsets.tolist(), members.sizes.tolist(), strict=True)
            for row, place in enumerate(places):
                self._places[_plain(members.name(row))] = place

    def resolve(
        self,
        members: Members,
        kinds: NDArray[np.uint8],
        targets: dict[int, bytes],
        start: int,
        ignored: Counter[str],
    ) -> tuple[Members, DataError | None]:
        """Give hard links their payloads; `kinds` and `targets` are of the members, by row.

        `start` is where the members' first header starts.

        Returns:
            The members, less those that hold no field, and the error of the first that must have
            one and has not; then the members before that.
        """
        if self._places is None:
            self._collect(start)
        assert self._places is not None
        keep = np.ones(len(members), np.bool_)
        for row, kind in enumerate(kinds.tolist()):
            name = members.name(row)
            if kind not in ELSEWHERE:
                place = (int(members.offsets[row]), int(members.sizes[row]))
            else:
                target = targets.get(row, b"")
                found = self._places.get(_plain(target)) if kind == _HARD else None
                if found is not None and found[0] < start and not self._can_look_back:
                    found = None
                if found is None:
                    one = members.take(np.array([row]))
                    if len(split_names(one.names, one.lengths, Counter())[0]):
                        problem = self._error(kind, name, target, int(one.offsets[0]))
                        keep[row:] = False
                        return members.take(keep), problem
                    ignored[ELSEWHERE[kind]] += 1
                    keep[row] = False
                    continue
                place = found
                members.offsets[row], members.sizes[row] = place
            self._places[_plain(name)] = place
        return members.take(keep), None

    def _collect(self, stop: int) -> None:
        self._places = {}
        source = self._scan.source.again(stop)
        self._can_look_back = source is not None
        if source is not None and stop:
            for members in self._walk_before(HeaderScan(source, url=self._scan.url)):
                self.add(members)

    def _error(self, kind: int, name: bytes, target: bytes, offset: int) -> DataError:
        what = f"the member {shown(name)} is a {ELSEWHERE[kind]}"
        if kind == _CONTINUED:
            reason = f"{what}: pack the shard again without --multi-volume"
        elif kind == _SYMBOLIC:
            reason = (
                f"{what} to {shown(target)}, and tar stores no data of it: pack the shard again "
                "with `tar --dereference`"
            )
        elif self._can_look_back:
            reason = (
                f"{what} to {shown(target)}, which is no regular file before it in the shard: pack "
                "the shard again with `tar --hard-dereference`"
            )
        else:
            reason = (
                f"{what} to {shown(target)}, whose data a pipe or a compressed shard can't go back "
                "to: open the unpacked file by its path or URL, or pack the shard again with "
                "`tar --hard-dereference`"
            )
        key, _, field = name.decode("utf-8", "backslashreplace").rpartition("/")[2].partition(".")
        directory = name.decode("utf-8", "backslashreplace").rpartition("/")[0]
        key = f"{directory}/{key}" if directory else key
        return DataError(reason, url=self._scan.url, key=key, field=field.lower(), offset=offset)


def link_targets(
    blocks: NDArray[np.uint8], long_targets: dict[int, bytes], rows: NDArray[np.intp]
) -> dict[int, bytes]:
    """The names that links of some rows of a run lead to, by their number among those rows."""
    return {
        number: long_targets.get(row) or blocks[row, _TARGET].tobytes().partition(b"\0")[0]
        for number, row in enumerate(rows.tolist())
    }


def _plain(name: bytes) -> bytes:
    """A name as a file system understands it: `./a//b` is `a/b`; tar takes no root."""
    return posixpath.normpath(name).lstrip(b"/")
