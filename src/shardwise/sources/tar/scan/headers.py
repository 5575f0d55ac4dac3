"""Tar headers: 512-byte blocks to numbers and names, a whole array of them at once.

A header's checksum is verified before its fields are used. Formats: POSIX USTAR and PAX (IEEE Std
1003.1, "pax - Extended Header"), GNU (base-256 numbers, long names) and the old V7. Each header's
position follows from the one before: payloads that look like headers do not fool that chain.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

BLOCK = 512

# The fields of a header.
_NAME = slice(0, 100)
_SIZE = slice(124, 136)
CHECKSUM = slice(148, 156)
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)

_SPACES = 8 * ord(" ")

# Bytes that headers don't use: `shardwise redact` writes a mark into those of removed samples,
# and the number of removed samples into the shard's first block.
REMOVED, MARK, COUNT = b"rm", slice(500, 502), slice(502, 512)


def round_up(num_bytes: int) -> int:
    """The bytes that a payload takes up in a tar: a multiple of 512."""
    return -(-num_bytes // BLOCK) * BLOCK


def has_magic(blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Mark the uint8 `[n, 512]` blocks that carry "ustar", as all headers since 1988 do."""
    start = _MAGIC.start
    words = blocks[:, start : start + 4].view("<u4")[:, 0]
    is_magic: NDArray[np.bool_] = words == int.from_bytes(b"usta", "little")
    is_magic &= blocks[:, start + 4] == ord("r")
    return is_magic


def checksums_hold(blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Mark the uint8 `[n, 512]` headers that add up to the checksum that they state."""
    stated, is_plain = _octal(blocks[:, CHECKSUM.start : CHECKSUM.start + 6])
    end = blocks[:, CHECKSUM.start + 6]
    is_plain &= (end == 0) | (end == ord(" "))
    field = blocks[:, CHECKSUM].sum(axis=1, dtype=np.uint32)
    sums = blocks.sum(axis=1, dtype=np.uint32) - field + np.uint32(_SPACES)
    is_sound: NDArray[np.bool_] = is_plain & (sums == stated)
    for row in np.flatnonzero(~is_sound):
        is_sound[row] = _checksum_holds(blocks[row].tobytes())
    return is_sound


def _checksum_holds(block: bytes) -> bool:
    """The same for one header, in any notation; old systems added the bytes up as signed ones."""
    stated = parse_number(block[CHECKSUM])
    covered = block[: CHECKSUM.start] + block[CHECKSUM.stop :]
    total = sum(covered) + _SPACES
    num_negative = sum(byte > 127 for byte in covered)  # as signed bytes, those are 256 less
    return stated in (total, total - 256 * num_negative)


def parse_sizes(blocks: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The size fields of uint8 `[n, 512]` headers: int64 `[n]`, -1 where it is not a number."""
    sizes, is_plain = _octal(blocks[:, _SIZE.start : _SIZE.stop - 1])
    is_plain &= (blocks[:, _SIZE.stop - 1] == 0) | (blocks[:, _SIZE.stop - 1] == ord(" "))
    for row in np.flatnonzero(~is_plain):
        number = parse_number(blocks[row, _SIZE].tobytes())
        sizes[row] = -1 if number is None else number
    return sizes


def _octal(digits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    values = digits - np.uint8(ord("0"))
    is_digit = values < 8
    # One call for all rows is much faster than one per row, and nearly always enough.
    is_plain: NDArray[np.bool_] = (
        np.ones(len(digits), np.bool_)
        if is_digit.all()
        else np.logical_and.reduce(is_digit, axis=1)
    )
    powers = 8.0 ** np.arange(digits.shape[1] - 1, -1, -1)
    # Eleven octal digits are exact in a float64, and floats multiply faster than integers.
    return (values.astype(np.float64) @ powers).astype(np.int64), is_plain


def parse_number(field: bytes) -> int | None:
    """A number in octal digits or GNU's base 256; None if malformed, negative or beyond 2**62."""
    if field and field[0] & 0x80:
        number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        return number if number < 1 << 62 else None
    text = field.partition(b"\0")[0].strip(b" ")
    if not text:
        return 0
    is_octal = text.isdigit() and b"8" not in text and b"9" not in text
    return int(text, 8) if is_octal else None


def stored_names(
    blocks: NDArray[np.uint8],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.intp]]:
    """The name fields of uint8 `[n, 512]` headers.

    Returns:
        The names as uint8 `[n, width]` padded with zeros, their lengths, and the rows whose
        name has a prefix in another field: for those, call `read_name`.
    """
    # Most names are far shorter than the field: only words that some name uses are copied.
    used = np.flatnonzero(np.bitwise_or.reduce(blocks[:, :104].view("<u8"), axis=0)[:12])
    width = 8 * int(used[-1]) + 8 if len(used) else 8
    if blocks[:, 96 : _NAME.stop].any():
        width = _NAME.stop
    names = blocks[:, :width].copy()
    ends = names == 0
    lengths = ends.argmax(axis=1)
    # A name without a zero fills the field.
    lengths[names[np.arange(len(names)), lengths] != 0] = width
    behind = np.arange(width) >= lengths[:, None]
    if (ends != behind).any():
        names[behind] = 0
    has_prefix = blocks[:, _PREFIX.start] != 0
    if has_prefix.any():
        # GNU headers hold times where POSIX ones hold the prefix.
        has_prefix &= blocks[:, _MAGIC.stop - 1] == 0
        has_prefix &= has_magic(blocks)
    return names, lengths, np.flatnonzero(has_prefix)


def read_name(block: bytes) -> bytes:
    """The name that one header states, with its prefix."""
    name = block[_NAME].partition(b"\0")[0]
    prefix = block[_PREFIX].partition(b"\0")[0]
    return prefix + b"/" + name if prefix and block[_MAGIC] == b"ustar\0" else name


def parse_pax(payload: bytes) -> dict[bytes, bytes]:
    """The records of a PAX extended header: a length, a key, a value and a line feed each."""
    records = {}
    start = 0
    while start < len(payload) and payload[start]:
        digits, space, _ = payload[start : start + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = payload[start + len(digits) + 1 : start + length]
        key, equals, value = record[:-1].partition(b"=")
        is_whole = len(digits) < length <= len(payload) - start and record[-1:] == b"\n"
        if not (is_whole and equals and key):
            raise ValueError(f"malformed record at byte {start} of the extended header")
        records[key] = value
        start += length
    return records


# Extended headers are about the next header: GNU's long names, PAX records.
EXTENDED = b"LKxgX"
PAX = b"xgX"
# Links, devices, directories and pipes have no payload, whatever their size field holds.
WITHOUT_PAYLOAD = b"123456"
IS_EXTENDED, IS_PAX, _IS_EMPTY = (
    np.isin(np.arange(256), list(kinds)) for kinds in (EXTENDED, PAX, WITHOUT_PAYLOAD)
)

# The byte of a header that states the kind of its member.
KIND = 156


def links(
    heads: NDArray[np.uint8], positions: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sizes of possible headers, and the block where the next header would be; -1 unknown."""
    sizes = parse_sizes(heads)
    kinds = heads[:, KIND]
    sizes[_IS_EMPTY[kinds]] = 0
    follow = positions + 1 + (sizes + (BLOCK - 1)) // BLOCK
    follow[(sizes < 0) | (kinds == ord("S"))] = -1
    return sizes, follow


def walk(positions: NDArray[np.intp], follow: NDArray[np.int64], stop: int) -> NDArray[np.intp]:
    """The rows of the true headers: from the first on, each where the one before it points.

    `positions` are the blocks, of `stop`, that look like headers, ascending; `follow` has for each
    the block where the next header would be, and -1 where the walk stops.
    """
    # Most blocks that look like headers are the next in the chain: runs of them are taken whole.
    breaks = [*np.flatnonzero(follow[:-1] != positions[1:]).tolist(), len(positions) - 1]
    runs = []
    row = 0
    while True:
        last = breaks[bisect_left(breaks, row)]
        runs.append(np.arange(row, last + 1))
        target = int(follow[last])
        if not 0 <= target < stop:
            break
        row = int(np.searchsorted(positions, target))
        if row == len(positions) or positions[row] != target:
            break
    return np.concatenate(runs)
