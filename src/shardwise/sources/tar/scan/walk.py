"""The scan of a shard's headers: each header's position follows from the one before.

Payloads that look like headers do not fool the chain; a checksum that fails, a shard cut short and
zeros followed by data are errors. Small members are read in blocks, and their headers found
by arrays; between large ones only the headers are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.plugins import find
from shardwise.sources.tar.scan.byte_source import ByteSource, FileBytes, refuse_compressed_start
from shardwise.sources.tar.scan.headers import (
    BLOCK,
    EXTENDED,
    IS_EXTENDED,
    IS_PAX,
    KIND,
    PAX,
    WITHOUT_PAYLOAD,
    checksums_hold,
    has_magic,
    links,
    parse_number,
    parse_pax,
    read_name,
    round_up,
    walk,
)
from shardwise.storage import File
from shardwise.storage.known_formats import known_format

# Bytes that are read at a time after the last member.
_END_READ_BYTES = 1 << 20
# Headers read one by one before the first block is tried again.
_FIRST_SPARSE_HEADERS = 64
# Longer extended headers hold no names: a file's path has at most 4096 bytes.
_MAX_EXTENDED_BYTES = 1 << 20


@dataclass
class HeaderRun:
    """Headers that follow one another; extended headers never stand at the end of a run.

    Attributes:
        positions: int64 `[n]`, where each header starts.
        blocks: uint8 `[n, 512]`, the headers; their checksums hold.
        sizes: int64 `[n]`, payload bytes (those that a PAX record states, where there is one).
        extended: payloads of the extended headers, by their row; those that give no name may be
            left out.
    """

    positions: NDArray[np.int64]
    blocks: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    extended: dict[int, bytes] = field(default_factory=dict)

    def first(self, num: int) -> HeaderRun:
        """The first `num` headers, less the extended ones at their end."""
        while num and IS_EXTENDED[self.blocks[num - 1, KIND]]:
            num -= 1
        extended = {row: payload for row, payload in self.extended.items() if row < num}
        return HeaderRun(self.positions[:num], self.blocks[:num], self.sizes[:num], extended)


class HeaderScan:
    """One walk through the headers of a tar, from the header at `start` to the tar's end.

    Without a block of zeros at the end (`has_end`) it may have been cut between two members.
    """

    def __init__(self, source: ByteSource, *, url: str, start: int = 0) -> None:
        self.source = source
        self.url = url
        self.position = start
        self.num_bytes_read = 0
        self.has_end = False
        # Offsets of the payloads of removed samples.
        self.removed: list[int] = []
        self._is_done = False
        self._problem: DataError | None = None
        self._last_header = b""
        # The format of the first bytes, if they are not a header.
        self._known: str | None = None

    def runs(self) -> Iterator[HeaderRun]:
        """The headers in order."""
        num_bytes = self.source.available(0, BLOCK)
        if not num_bytes:
            raise DataError("an empty file: not a tar, not even one without members", url=self.url)
        start = self._read(0, num_bytes)
        refuse_compressed_start(start, self.url)
        self._known = known_format(start)
        is_dense, length = True, self.source.first_read_bytes
        num_headers = min(_FIRST_SPARSE_HEADERS, self.source.sparse_headers)
        while not self._is_done:
            run = self._read_dense(length) if is_dense else None
            if run is None:
                run = self._read_sparse(num_headers)
            run = self._sound(run)
            if len(run.positions):
                yield run
                is_dense = self.source.is_dense(run.positions, self.position)
                length, num_headers = self.source.block_bytes, self.source.sparse_headers
            if self._problem is not None:
                raise self._problem

    def _read(self, position: int, length: int) -> bytes:
        self.num_bytes_read += length
        return self.source.read(position, length)

    def _read_dense(self, length: int) -> HeaderRun | None:
        """The headers in the next `length` bytes, by arrays; None if the first one is unusual."""
        length = self.source.available(self.position, length) // BLOCK * BLOCK
        if not length:
            return None
        data = self.source.read_block(self.position, length)
        self.num_bytes_read += length
        blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCK)
        heads_at = np.flatnonzero(has_magic(blocks))
        if not len(heads_at) or heads_at[0]:
            return None
        heads = blocks.take(heads_at, axis=0)
        sizes, follow = links(heads, heads_at)
        rows = walk(heads_at, follow, len(blocks))
        kinds = heads[rows, KIND]
        extended: dict[int, bytes] = {}
        marked = np.flatnonzero(IS_EXTENDED[kinds])
        if len(marked):
            begins = (heads_at[rows[marked]] + 1) * BLOCK
            lengths = sizes[rows[marked]]
            is_pax = IS_PAX[kinds[marked]]
            # A long name ends at its NUL, also past the stated length: whole blocks are read, as
            # the standard library and GNU tar do.
            ends = begins + np.where(is_pax, lengths, -(-lengths // BLOCK) * BLOCK)
            for row, begin, end, pax in zip(
                marked.tolist(), begins.tolist(), ends.tolist(), is_pax.tolist(), strict=True
            ):
                if pax and data.find(b"size=", begin, end) >= 0:
                    # The record may change the next member's size, and so the chain.
                    rows = rows[:row]
                    break
                if not pax or data.find(b"path=", begin, end) >= 0:
                    extended[row] = data[begin:end]
        # An extended header and the member that it is about stay in one run.
        while len(rows) and (IS_EXTENDED[kinds[len(rows) - 1]] or follow[rows[-1]] < 0):
            extended.pop(len(rows) - 1, None)
            rows = rows[:-1]
        if not len(rows):
            return None
        start = self.position
        self.position += int(follow[rows[-1]]) * BLOCK
        if len(rows) < len(heads_at):
            heads, sizes, heads_at = heads[rows], sizes[rows], heads_at[rows]
        return HeaderRun(start + heads_at * BLOCK, heads, sizes, extended)

    def _read_sparse(self, num_headers: int) -> HeaderRun:
        """The next headers, one read each, up to a bad one, which becomes the problem."""
        positions: list[int] = []
        blocks: list[bytes] = []
        sizes: list[int] = []
        extended: dict[int, bytes] = {}
        stated_size: int | None = None
        is_open = False
        position = self.position
        try:
            while is_open or len(positions) < num_headers:
                is_there = self.source.available(position, BLOCK) == BLOCK
                block = self._read(position, BLOCK) if is_there else b""
                if not block or (not block[0] and not block.strip(b"\0")):
                    self._end(position, positions[-1] if is_open else None)
                    break
                kind = block[KIND]
                positions.append(position)
                blocks.append(block)
                sizes.append(0)
                size = self._size_of(block, position)
                is_open = kind in EXTENDED
                if is_open:
                    length = size if kind in PAX else round_up(size)
                    length = self.source.available(position + BLOCK, length)
                    payload = extended[len(positions) - 1] = self._read(position + BLOCK, length)
                    if kind in PAX:
                        stated = _stated_size(kind, payload)
                        stated_size = stated_size if stated is None else stated
                elif kind in WITHOUT_PAYLOAD:
                    size, stated_size = 0, None
                elif stated_size is not None:
                    size, stated_size = stated_size, None
                sizes[-1] = size
                position += BLOCK + round_up(size)
        except DataError as error:
            self._problem = error
        except ValueError as error:
            self._problem = DataError(str(error), url=self.url, offset=position)
        self.position = position
        return HeaderRun(
            np.array(positions, dtype=np.int64),
            np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, BLOCK),
            np.array(sizes, dtype=np.int64),
            extended,
        )

    def _size_of(self, block: bytes, position: int) -> int:
        size = parse_number(block[124:136])
        if size is None:
            problem = f"the header of {shown(read_name(block))} states no size that can be read"
        elif block[KIND] == ord("S"):
            name = shown(read_name(block))
            problem = f"{name} is a GNU sparse member: pack the shard again without --sparse"
        elif block[KIND] in EXTENDED and size > _MAX_EXTENDED_BYTES:
            problem = (
                f"an extended header of {size} bytes: more than {_MAX_EXTENDED_BYTES} are no names"
            )
        else:
            return size
        raise DataError(problem, url=self.url, offset=position)

    def _sound(self, run: HeaderRun) -> HeaderRun:
        """The headers before the first damaged one, which becomes the problem."""
        num_sound = len(run.positions) - (self._problem is not None and not self._is_done)
        wrong = np.flatnonzero(~checksums_hold(run.blocks))
        if len(wrong):
            num_sound = int(wrong[0])
            before = run.blocks[num_sound - 1].tobytes() if num_sound else self._last_header
            behind = f" behind the member {shown(read_name(before))}" if before else ""
            known = f" (it is {self._known})" if self._known and not before else ""
            self._problem = DataError(
                f"a damaged header{behind}: its checksum does not hold"
                if has_magic(run.blocks[num_sound : num_sound + 1])[0]
                else f"no header{behind}, where one must begin: damaged here, or not a tar at all"
                f"{known}",
                url=self.url,
                offset=int(run.positions[num_sound]),
            )
        if self._problem is not None:
            return run.first(num_sound)
        if len(run.blocks):
            self._last_header = run.blocks[-1].tobytes()
        return run

    def _end(self, position: int, open_at: int | None) -> None:
        """Read on to the tar's end; `open_at` is an extended header that has no member yet."""
        self._is_done = True
        num_bytes = self.source.available(position, _END_READ_BYTES)
        self.has_end = num_bytes >= BLOCK
        if open_at is not None:
            raise DataError(
                "an extended header with no member behind it: the shard is cut short",
                url=self.url, offset=open_at,
            )  # fmt: skip
        start = position
        while num_bytes:
            data = self._read(start, num_bytes)
            rest = data.lstrip(b"\0")
            if rest:
                message = (
                    f"zeros where a header must be, and data behind them at byte "
                    f"{start + len(data) - len(rest)}: a hole in the shard, or two tars in one "
                    "file (join tars with `tar --concatenate`, not with `cat`)"
                    if self.has_end
                    else f"the shard is cut short: {len(data)} bytes where a header takes {BLOCK}"
                )
                raise DataError(message, url=self.url, offset=position)
            start += num_bytes
            num_bytes = self.source.available(start, _END_READ_BYTES)


def _stated_size(kind: int, payload: bytes) -> int | None:
    """The size that PAX records state for the next member; ValueError if it can't be followed."""
    records = parse_pax(payload)
    if any(key.startswith(b"GNU.sparse") for key in records):
        raise ValueError("a GNU sparse member: pack the shard again without --sparse")
    stated = records.get(b"size")
    if stated is None:
        return None
    if kind == ord("g"):
        raise ValueError("a global header that gives all members one size: pack the shard again")
    if not stated.isdigit() or len(stated) > 18:
        raise ValueError(f"the extended header states the size {stated!r}")
    return int(stated)


class Scan(HeaderScan):
    """The walk through the headers of a file; those of a remote one are prefetched."""

    def __init__(self, file: File, num_bytes: int, *, url: str, start: int = 0) -> None:
        kind = find("storage", "headers") if file.is_remote else FileBytes
        source = kind(file, num_bytes)
        super().__init__(source, url=url, start=start)


def shown(name: bytes) -> str:
    """A member's name, for messages."""
    return repr(name.decode("utf-8", "backslashreplace"))
