"""The members of a tar that is read as a stream, from the first byte to the last.

Keeps I6: the chain of headers is followed and every checksum is held; damage, a cut, and data
behind the end are errors that name url, key and offset. The stream is read in large blocks, and
the headers of a block are found by arrays, as in the index.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.compat.webdataset.tar_bytes import READ_BYTES, DamagedShardError, TarBytes
from shardwise.sources.tar.scan.header_chain import (
    EXTENDED,
    KIND,
    PAX,
    WITHOUT_PAYLOAD,
    links,
    walk,
)
from shardwise.sources.tar.scan.headers import (
    BLOCK,
    checksums_hold,
    has_magic,
    parse_number,
    parse_pax,
    read_name,
    round_up,
    stored_names,
)

_FIRST_READ = 64 << 10
_REGULAR = frozenset(b"0\0" + b"7")
_IS_REGULAR = np.isin(np.arange(256), list(_REGULAR))
_MAX_EXTENDED = 1 << 20
# Names, and where each payload begins and ends in the bytes.
Block = tuple[bytes, list[bytes], list[int], list[int]]


def read_blocks(stream: Any, url: str) -> Generator[Block, None, bool]:
    """The regular members of a tar, many at a time."""
    return _Reader(stream, url).blocks()


class _Reader(TarBytes):
    """Reads the headers of one tar."""

    def __init__(self, stream: Any, url: str) -> None:
        super().__init__(stream, url)
        self._last = b""
        # What extended headers say about the next member.
        self._name: bytes | None = None
        self._size: int | None = None
        self._open_at: int | None = None

    def blocks(self) -> Generator[Block, None, bool]:
        self._unpack()
        length = _FIRST_READ
        while True:
            if len(self._data) - self._at < BLOCK:
                self._fill(length)
                length = READ_BYTES
            start = self._data[self._at : self._at + BLOCK]
            if len(start) < BLOCK:
                self._refuse_rest()
                return False
            if not start[0] and not start.strip(b"\0"):
                self._read_end()
                return True
            block = self._many() or self._one()
            if block[1]:
                yield block

    def _many(self) -> Block | None:
        """All whole members that lie in the buffer; None if the first header is unusual."""
        if self._open_at is not None:
            return None
        data, at = self._data, self._at
        num_blocks = (len(data) - at) // BLOCK
        blocks = np.frombuffer(data, np.uint8, num_blocks * BLOCK, at).reshape(-1, BLOCK)
        places = np.flatnonzero(has_magic(blocks))
        if not len(places) or places[0]:
            return None
        heads = blocks.take(places, axis=0)
        sizes, follow = links(heads, places)
        rows = walk(places, follow, num_blocks)
        # A payload must lie in the buffer as a whole.
        whole = (follow[rows] >= 0) & (follow[rows] <= num_blocks)
        if not whole.all():
            rows = rows[: int(whole.argmin())]
        if len(rows) and len(rows) < len(places):
            heads, sizes, places, follow = heads[rows], sizes[rows], places[rows], follow[rows]
        held = checksums_hold(heads) if len(rows) else whole[:0]
        num = len(rows) if held.all() else int(held.argmin())
        if not num:
            return None
        starts = at + (places[:num] + 1) * BLOCK
        ends = (starts + sizes[:num]).tolist()
        names = _names(heads[:num])
        kinds = heads[:num, KIND]
        block = data, names, starts.tolist(), ends
        if not _IS_REGULAR[kinds].all():
            block, num = self._with_extended(kinds.tolist(), block)
            if not num:
                return None
        self._last = heads[num - 1].tobytes()
        self._use(int(follow[num - 1]) * BLOCK)
        return block

    def _with_extended(self, kinds: list[int], block: Block) -> tuple[Block, int]:
        """The regular ones of members with extended headers among them, and how many were used."""
        data, names, starts, ends = block
        regular: tuple[list[bytes], list[int], list[int]] = [], [], []
        num = 0
        for row, kind in enumerate(kinds):
            position = self._base + starts[row] - self._at - BLOCK
            if kind in EXTENDED:
                if ends[row] - starts[row] > _MAX_EXTENDED:
                    break
                self._take_extended(kind, data[starts[row] : ends[row]], position)
                if self._size is not None:
                    break
            elif kind in _REGULAR:
                regular[0].append(self._name or names[row])
                regular[1].append(starts[row])
                regular[2].append(ends[row])
            elif kind == ord("S"):
                break
            if kind not in EXTENDED:
                self._name = self._open_at = None
            if self._open_at is None:
                num = row + 1
        # What was read of the next member's extended headers is read again with it.
        self._name = self._size = self._open_at = None
        return (data, *regular), num

    def _one(self) -> Block:
        """The next header alone, with all of its payload."""
        head = self._data[self._at : self._at + BLOCK]
        self._check(head)
        kind = head[KIND]
        name = self._name or read_name(head)
        size = parse_number(head[124:136])
        shown = repr(name.decode("utf-8", "backslashreplace"))
        if size is None:
            raise self._damage(f"the header of {shown} states no size that can be read", self._base)
        if kind == ord("S"):
            raise self._damage(
                f"{shown} is a GNU sparse member: pack the shard again without --sparse", self._base
            )
        if kind in EXTENDED and size > _MAX_EXTENDED:
            raise self._damage(
                f"an extended header of {size} bytes: more than {_MAX_EXTENDED} are no names",
                self._base,
            )
        if kind in WITHOUT_PAYLOAD:
            size = 0
        elif self._size is not None and kind not in EXTENDED:
            size = self._size
        needed = BLOCK + round_up(size)
        if len(self._data) - self._at < needed:
            self._fill(max(READ_BYTES, needed))
        if len(self._data) - self._at < BLOCK + size:
            raise self._cut(name, size)
        data, start, position = self._data, self._at + BLOCK, self._base
        self._use(min(needed, len(data) - self._at))
        self._last = head
        if kind in EXTENDED:
            self._take_extended(kind, data[start : start + size], position)
            return data, [], [], []
        self._name = self._size = self._open_at = None
        if kind not in _REGULAR:
            return data, [], [], []
        return data, [name], [start], [start + size]

    def _cut(self, name: bytes, size: int) -> DamagedShardError:
        if self._problem is not None:
            return self._problem
        text = name.decode("utf-8", "backslashreplace")
        key, _, field = text.partition(".")
        return DamagedShardError(
            f"the shard is cut short: the member {text!r} reaches to byte "
            f"{self._base + BLOCK + size}, the shard ends at byte "
            f"{self._base + len(self._data) - self._at}",
            url=self.url,
            key=key,
            field=field or None,
            offset=self._base,
        )

    def _take_extended(self, kind: int, payload: bytes, position: int) -> None:
        """Remember what an extended header says about the next member."""
        self._open_at = position
        if kind == ord("L"):
            self._name = self._name or payload.partition(b"\0")[0]
        if kind not in PAX:
            return
        try:
            records = parse_pax(payload)
        except ValueError as error:
            raise self._damage(str(error), position) from error
        if any(record.startswith(b"GNU.sparse") for record in records):
            raise self._damage(
                "a GNU sparse member: pack the shard again without --sparse", position
            )
        name, size = records.get(b"path"), records.get(b"size")
        if kind == ord("g"):
            if name is not None or size is not None:
                raise self._damage(
                    "a global header that gives all members one name or size: pack it again",
                    position,
                )
            self._open_at = None
            return
        self._name = self._name or name
        if size is not None:
            if not size.isdigit() or len(size) > 18:
                raise self._damage(f"the extended header states the size {size!r}", position)
            self._size = int(size)

    def _check(self, head: bytes) -> None:
        """Raise if the checksum does not hold."""
        row = np.frombuffer(head, np.uint8).reshape(1, BLOCK)
        if checksums_hold(row)[0]:
            return
        name = read_name(self._last).decode("utf-8", "backslashreplace") if self._last else ""
        behind = f" behind the member {name!r}" if self._last else ""
        raise self._damage(
            f"a damaged header{behind}: its checksum does not hold"
            if has_magic(row)[0]
            else f"no header{behind}, where one must begin: damaged here, or not a tar at all",
            self._base,
        )

    def _read_end(self) -> None:
        """Behind the first block of zeros there may be nothing but zeros."""
        position = self._base
        if self._open_at is not None:
            raise self._damage("an extended header with no member behind it", self._open_at)
        while True:
            left = self._data[self._at :]
            rest = left.lstrip(b"\0")
            if rest:
                raise self._damage(
                    "zeros where a header must be, and data behind them at byte "
                    f"{self._base + len(left) - len(rest)}: a hole in the shard, or two tars "
                    "in one file (join tars with `tar --concatenate`, not with `cat`)",
                    position,
                )
            self._use(len(left))
            if self._problem is not None:
                raise self._problem
            if self._at_end:
                return
            self._fill(READ_BYTES)

    def _refuse_rest(self) -> None:
        """The stream has ended without a block of zeros."""
        if self._problem is not None:
            raise self._problem
        if self._open_at is not None:
            raise self._damage("an extended header with no member behind it", self._open_at)
        left = self._data[self._at :]
        if left.strip(b"\0"):
            raise self._damage(
                f"the shard is cut short: {len(left)} bytes where a header takes {BLOCK}",
                self._base,
            )


def _names(heads: NDArray[np.uint8]) -> list[bytes]:
    """The names in headers that have no extended header before them."""
    names, _, prefixed = stored_names(heads)
    # numpy's strings end at the first zero, as names do.
    found: list[bytes] = names.view(f"S{names.shape[1]}")[:, 0].tolist()
    for row in prefixed.tolist():
        found[row] = read_name(heads[row].tobytes())
    return found
