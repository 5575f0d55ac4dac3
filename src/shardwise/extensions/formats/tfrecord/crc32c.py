"""CRC-32C of many byte strings: by google-crc32c or crc32c at about 22 GB/s a core, or by numpy.

Numpy makes about 400 MB/s, and nothing needs to be installed for it. How it does that:
Blocks of all strings go through the table side by side, two bytes of each at a time; then the
blocks of a string are joined. Zeros before a string change nothing while the register begins with
0, so that strings are filled up to whole blocks at their beginning. A register that begins with
ones is one that begins with 0, with the first four bytes of the string inverted.

Source: RFC 3720 (the Castagnoli polynomial), and TensorFlow's mask of it in record files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_MASK = 0xA282EAD8
# A short block costs steps that join, a long one steps through the table.
_MIN_BLOCK, _MAX_BLOCK = 64, 16384
# Blocks of 1 MiB stay in the processor's L2 cache while they are transposed and counted.
_PART_BYTES = 1 << 20
_PART_WORDS = 1 << 12

Words = NDArray[np.uint32]


def masked_crc32c(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Words:
    """The CRC-32C of each string, turned and shifted as record files have it."""
    crc = crc32c(buffer, starts, lengths).astype(np.uint64)
    turned = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return ((turned + np.uint64(_MASK)) & np.uint64(_ONES)).astype(np.uint32)


def crc32c(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Words:
    """The CRC-32C of each string, by google-crc32c or crc32c where one is installed, else by numpy.

    Args:
        buffer: uint8 `[total]`.
        starts: int64 `[strings]`, where each begins in it.
        lengths: int64 `[strings]`, its length.
    """
    of_one = _compiled()
    if of_one is None:
        return crc32c_by_numpy(buffer, starts, lengths)
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.array([of_one(buffer[start:stop]) for start, stop in bounds], np.uint32)


@lru_cache(maxsize=1)
def _compiled() -> Callable[[NDArray[np.uint8]], int] | None:
    try:
        import google_crc32c
    except ImportError:
        pass
    else:
        # Without its extension it counts in Python, which numpy is faster than.
        if google_crc32c.implementation == "c":
            return google_crc32c.value  # type: ignore[no-any-return]
    try:
        # The package `tfrecord` requires it.
        from crc32c import crc32c as of_one
    except ImportError:
        return None
    return of_one  # type: ignore[no-any-return]


def crc32c_by_numpy(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Words:
    """The CRC-32C of each string, by numpy; arguments and result as of `crc32c`."""
    if not len(starts):
        return np.empty(0, np.uint32)
    longest = int(lengths.max())
    block = min(_MAX_BLOCK, max(_MIN_BLOCK, 1 << (longest.bit_length() // 2)))
    counts = np.maximum(1, -(-lengths // block))
    num_blocks = int(counts.sum())
    # All strings, each filled up with zeros at its beginning.
    filled = np.zeros(num_blocks * block, np.uint8)
    ends = np.cumsum(counts) * block
    for start, length, end in zip(starts.tolist(), lengths.tolist(), ends.tolist(), strict=True):
        filled[end - length : end] = buffer[start : start + length]
    firsts = np.arange(4)
    is_there = firsts < lengths[:, None]
    filled[((ends - lengths)[:, None] + firsts)[is_there]] ^= 0xFF
    table = _table_of_pairs()
    crc = np.zeros(num_blocks, np.uint32)
    pairs = filled.view("<u2").reshape(num_blocks, block // 2)
    step = _PART_BYTES // block
    for at in range(0, num_blocks, step):
        register = crc[at : at + step]
        for column in np.ascontiguousarray(pairs[at : at + step].T):
            low = register.astype(np.uint16)
            low ^= column
            register >>= np.uint32(16)
            register ^= table.take(low)
    # Neighbours are joined, from the end of each string on, until each string is one block.
    while len(crc) > len(starts):
        halves = -(-counts // 2)
        shifts = np.cumsum(2 * halves - counts)
        halved = np.zeros((int(halves.sum()), 2), np.uint32)
        halved.reshape(-1)[np.arange(len(crc)) + np.repeat(shifts, counts)] = crc
        crc = _apply(_zeros(block), halved[:, 0]) ^ halved[:, 1]
        counts, block = halves, 2 * block
    # The ones that a string of less than four bytes did not reach.
    ones = _ONES >> 8 * np.minimum(lengths, 4)
    return crc ^ ones.astype(np.uint32) ^ np.uint32(_ONES)


@lru_cache(maxsize=1)
def _table() -> Words:
    """What a byte does to the register."""
    table: Words = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


@lru_cache(maxsize=1)
def _table_of_pairs() -> Words:
    """What two bytes do to the register: 256 KiB, which stay in the processor's L2 cache."""
    table = _table()
    register = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        register = table[register & np.uint32(255)] ^ (register >> np.uint32(8))
    return register


@lru_cache(maxsize=64)
def _zeros(num_bytes: int) -> Words:
    """What a power of two of zero bytes does to each bit of the register: uint32 `[32]`."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if num_bytes == 1:
        one: Words = _table()[bits & np.uint32(255)] ^ (bits >> np.uint32(8))
        return one
    half = _zeros(num_bytes // 2)
    return _apply(half, half)


def _apply(columns: Words, words: Words) -> Words:
    """A linear function of the register, by what it does to each bit."""
    bits = np.arange(32, dtype=np.uint32)[:, None]
    applied = np.empty_like(words)
    # The bits of a word take 128 bytes.
    for at in range(0, len(words), _PART_WORDS):
        part = words[at : at + _PART_WORDS] >> bits & np.uint32(1)
        np.bitwise_xor.reduce(columns[:, None] * part, axis=0, out=applied[at : at + _PART_WORDS])
    return applied
