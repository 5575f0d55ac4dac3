"""Walking the chain of headers through a shard: each header's place follows from the one before.

Keeps I6: payloads that look like headers do not fool the chain, a checksum that fails, a shard cut
short and zeros with data behind them are errors. Small members are read in blocks and taken many
at once; between large ones only the headers are read, of a remote shard many at the same time
(`ahead.py`). Imports numpy, `shardwise.errors`, `shardwise.storage` and the headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import DataError
from shardwise.sources.tar.scan.compressed import refuse_compressed_start
from shardwise.sources.tar.scan.header_chain import (
    EXTENDED,
    IS_EXTENDED,
    IS_PAX,
    KIND,
    PAX,
    WITHOUT_PAYLOAD,
    links,
    walk,
)
from shardwise.sources.tar.scan.header_prefetch import HeaderAhead
from shardwise.sources.tar.scan.headers import (
    BLOCK,
    checksums_hold,
    has_magic,
    parse_number,
    parse_pax,
    read_name,
    round_up,
)
from shardwise.storage import File

__all__ = ["HeaderRun", "Scan", "shown"]

_FIRST_READ = 64 << 10
_DENSE_READ = 1 << 20
# From here on it costs less to read each header by itself. Far below the size where it matters.
_SPARSE_STRIDE = 16 << 10
_SPARSE_RUN = 256
# The same for a remote shard, where a read takes in the small members that stand together: what
# counts is how far apart such groups are.
_FAR_FIRST_READ = 16 << 10
_FAR_SPARSE_RUN = 64
_FAR_GROUP = 4096
_FAR_STRIDE = 20 << 10
_MAX_EXTENDED = 1 << 20

_Blocks: TypeAlias = NDArray[np.uint8]


@dataclass
class HeaderRun:
    """Headers that follow one another; extended headers never stand at the end of a run.

    Attributes:
        positions: int64 `[n]`, where each header begins.
        blocks: uint8 `[n, 512]`, the headers; their checksums hold.
        sizes: int64 `[n]`, payload bytes (those that a PAX record states, where there is one).
        extended: payloads of the extended headers, by their row; those that give no name may be
            left out.
    """

    positions: NDArray[np.int64]
    blocks: _Blocks
    sizes: NDArray[np.int64]
    extended: dict[int, bytes] = field(default_factory=dict)


class Scan:
    """One walk through a shard.

    Args:
        file: the shard.
        num_bytes: its length.
        url: its name, for messages.
        start: the byte where the walk begins, which must be a header's place.

    Attributes:
        num_bytes_read: what was read for it so far.
        has_end: after the walk: whether the shard ended in a block of zeros. Without one it may
            have been cut between two members.
    """

    def __init__(self, file: File, num_bytes: int, *, url: str, start: int = 0) -> None:
        self._ahead = HeaderAhead(file, num_bytes) if file.is_remote else None
        self.file: File | HeaderAhead = file if self._ahead is None else self._ahead
        self.num_bytes = num_bytes
        self.url = url
        self.num_bytes_read = 0
        self.has_end = False
        self._position = start
        self._done = False
        self._problem: DataError | None = None
        self._last = b""
        # Two views of what is read in blocks: one to calculate, one to search.
        self._bytes = bytearray(_DENSE_READ)
        self._buffer = np.frombuffer(self._bytes, np.uint8)

    def runs(self) -> Iterator[HeaderRun]:
        """The headers in order.

        Raises:
            DataError: the shard is damaged or cut short. All runs before that are sound.
        """
        self._refuse_other_formats()
        is_dense, length, num_headers = True, _FIRST_READ, 64
        if self._ahead is not None:
            length = _FAR_FIRST_READ
        while not self._done:
            start = self._position
            run = self._read_dense(length) if is_dense else None
            if run is None:
                run = self._read_sparse(num_headers)
            self._check(run)
            if self._problem is not None:
                raise self._problem
            if len(run.positions):
                yield run
                is_dense, length = self._is_dense(start, run), _DENSE_READ
                num_headers = _SPARSE_RUN if self._ahead is None else _FAR_SPARSE_RUN

    def _is_dense(self, start: int, run: HeaderRun) -> bool:
        """Whether headers lie so close together that everything is best read."""
        length = self._position - start
        if self._ahead is None:
            return length // len(run.positions) < _SPARSE_STRIDE
        steps = np.diff(run.positions, append=self._position)
        num_groups = int(np.count_nonzero(steps > _FAR_GROUP))
        if not num_groups:
            return True
        self._ahead.expect(length // num_groups)
        return length // num_groups < _FAR_STRIDE

    def _refuse_other_formats(self) -> None:
        if not self.num_bytes:
            raise DataError("an empty file: not a tar, not even one without members", url=self.url)
        if self._ahead is not None:
            self._ahead.first(_FAR_FIRST_READ)
        refuse_compressed_start(self._read(0, min(self.num_bytes, 6)), self.url)

    def _read(self, position: int, length: int) -> bytes:
        self.num_bytes_read += length
        return self.file.read(position, length)

    def _read_dense(self, length: int) -> HeaderRun | None:
        """The headers in the next `length` bytes, by arrays; None if the first one is unusual."""
        length = min(length, self.num_bytes - self._position) // BLOCK * BLOCK
        if not length:
            return None
        buffer = self._buffer[:length]
        self.file.read_into(self._position, buffer.data)
        self.num_bytes_read += length
        blocks = buffer.reshape(-1, BLOCK)
        places = np.flatnonzero(has_magic(blocks))
        if not len(places) or places[0]:
            return None
        heads = blocks.take(places, axis=0)
        sizes, follow = links(heads, places)
        rows = walk(places, follow, len(blocks))
        kinds = heads[rows, KIND]
        extended: dict[int, bytes] = {}
        marked = np.flatnonzero(IS_EXTENDED[kinds])
        if len(marked):
            begins = (places[rows[marked]] + 1) * BLOCK
            lengths = sizes[rows[marked]]
            is_pax = IS_PAX[kinds[marked]]
            # A long name ends at its NUL, whatever the header says of its length: whole blocks are
            # read, as the standard library and GNU tar do.
            ends = begins + np.where(is_pax, lengths, -(-lengths // BLOCK) * BLOCK)
            find = self._bytes.find
            for row, begin, end, pax in zip(
                marked.tolist(), begins.tolist(), ends.tolist(), is_pax.tolist(), strict=True
            ):
                if pax and find(b"size=", begin, end) >= 0:
                    # It may give the next member another size, and so the chain another course.
                    rows = rows[:row]
                    break
                if not pax or find(b"path=", begin, end) >= 0:
                    extended[row] = bytes(self._bytes[begin:end])
        # What an extended header says must be in the run with the member it says it of.
        while len(rows) and (IS_EXTENDED[kinds[len(rows) - 1]] or follow[rows[-1]] < 0):
            extended.pop(len(rows) - 1, None)
            rows = rows[:-1]
        if not len(rows):
            return None
        start = self._position
        self._position += int(follow[rows[-1]]) * BLOCK
        if len(rows) < len(places):
            heads, sizes, places = heads[rows], sizes[rows], places[rows]
        return HeaderRun(start + places * BLOCK, heads, sizes, extended)

    def _read_sparse(self, num_headers: int) -> HeaderRun:
        """The next headers, one read each; ends early, with `_problem`, where one can't be."""
        positions: list[int] = []
        blocks: list[bytes] = []
        sizes: list[int] = []
        extended: dict[int, bytes] = {}
        stated_size: int | None = None
        is_open = False
        position = self._position
        while is_open or len(positions) < num_headers:
            if self.num_bytes - position < BLOCK:
                self._end(position, positions[-1] if is_open else None)
                break
            block = self._read(position, BLOCK)
            if not block[0] and not block.strip(b"\0"):
                self._end(position, positions[-1] if is_open else None)
                break
            size = parse_number(block[124:136])
            kind = block[KIND]
            positions.append(position)
            blocks.append(block)
            sizes.append(0)
            self._problem = self._look_at(block, position, size)
            if self._problem is not None or size is None:
                break
            is_open = kind in EXTENDED
            if is_open:
                length = size if kind in PAX else round_up(size)
                rest = self.num_bytes - position - BLOCK
                payload = self._read(position + BLOCK, min(length, rest))
                extended[len(positions) - 1] = payload
                if kind in PAX:
                    try:
                        stated_size = self._stated_size(kind, payload, stated_size)
                    except ValueError as error:
                        self._problem = DataError(str(error), url=self.url, offset=position)
                        break
            elif kind in WITHOUT_PAYLOAD:
                size, stated_size = 0, None
            elif stated_size is not None:
                size, stated_size = stated_size, None
            sizes[-1] = size
            position += BLOCK + round_up(size)
            if position > self.num_bytes:
                self._end(position, positions[-1] if is_open else None)
                break
        self._position = position
        return HeaderRun(
            np.array(positions, dtype=np.int64),
            np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, BLOCK),
            np.array(sizes, dtype=np.int64),
            extended,
        )

    def _look_at(self, block: bytes, position: int, size: int | None) -> DataError | None:
        """What is wrong with one header, besides its checksum."""
        if size is None:
            message = f"the header of {shown(read_name(block))} states no size that can be read"
        elif block[KIND] == ord("S"):
            name = shown(read_name(block))
            message = f"{name} is a GNU sparse member: pack the shard again without --sparse"
        elif block[KIND] in EXTENDED and size > _MAX_EXTENDED:
            message = f"an extended header of {size} bytes: more than {_MAX_EXTENDED} are no names"
        else:
            return None
        return DataError(message, url=self.url, offset=position)

    def _stated_size(self, kind: int, payload: bytes, before: int | None) -> int | None:
        records = parse_pax(payload)
        if any(key.startswith(b"GNU.sparse") for key in records):
            raise ValueError("a GNU sparse member: pack the shard again without --sparse")
        stated = records.get(b"size")
        if stated is None:
            return before
        if kind == ord("g"):
            raise ValueError(
                "a global header that gives all members one size: pack the shard again"
            )
        if not stated.isdigit() or len(stated) > 18:
            raise ValueError(f"the extended header states the size {stated!r}")
        return int(stated)

    def _check(self, run: HeaderRun) -> None:
        """Raise for the first header that is damaged."""
        wrong = np.flatnonzero(~checksums_hold(run.blocks))
        if len(wrong):
            row = int(wrong[0])
            before = run.blocks[row - 1].tobytes() if row else self._last
            behind = f" behind the member {shown(read_name(before))}" if before else ""
            raise DataError(
                f"a damaged header{behind}: its checksum does not hold"
                if has_magic(run.blocks[row : row + 1])[0]
                else f"no header{behind}, where one must begin: damaged here, or not a tar at all",
                url=self.url,
                offset=int(run.positions[row]),
            )
        if len(run.blocks):
            self._last = run.blocks[-1].tobytes()

    def _end(self, position: int, open_at: int | None) -> None:
        """Look at what follows the last member: zeros up to the end, or nothing at all."""
        self._done = True
        self.has_end = self.num_bytes - position >= BLOCK
        if open_at is not None:
            self._problem = DataError(
                "an extended header with no member behind it: the shard is cut short",
                url=self.url, offset=open_at,
            )  # fmt: skip
            return
        for start in range(position, self.num_bytes, _DENSE_READ):
            data = self._read(start, min(_DENSE_READ, self.num_bytes - start))
            rest = data.lstrip(b"\0")
            if rest:
                message = (
                    f"zeros where a header must be, and data behind them at byte "
                    f"{start + len(data) - len(rest)}: a hole in the shard, or two tars in one "
                    "file (join tars with `tar --concatenate`, not with `cat`)"
                    if self.has_end
                    else f"the shard is cut short: {len(data)} bytes where a header takes {BLOCK}"
                )
                self._problem = DataError(message, url=self.url, offset=position)
                return


def shown(name: bytes) -> str:
    """A member's name for a message."""
    return repr(name.decode("utf-8", "backslashreplace"))
