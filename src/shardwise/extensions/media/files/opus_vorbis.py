"""The number of samples in a packet of Opus or Vorbis: nothing is decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError

# Samples of a frame of Opus at 48 kHz, by the low bits of the configuration (RFC 6716, 3.1).
_SILK, _HYBRID, _CELT = (480, 960, 1920, 2880), (480, 960), (120, 240, 480, 960)
# Bits of a mode of Vorbis: its block's size, window, transform and mapping.
_MODE_BITS = 41


def opus_samples(packet: bytes) -> int:
    """Samples of a packet of Opus at 48 kHz (RFC 6716, 3).

    >>> opus_samples(bytes([0x78])), opus_samples(bytes([0x0B, 2]))
    (960, 1920)
    """
    if not packet:
        return 0
    config = packet[0] >> 3
    if config < 12:
        length = _SILK[config & 3]
    else:
        length = _HYBRID[config & 1] if config < 16 else _CELT[config & 3]
    code = packet[0] & 3
    if code == 3:
        return length * (packet[1] & 63 if len(packet) > 1 else 0)
    return length * (2 if code else 1)


def opus_delay(codec: str, config: bytes, said: int) -> int:
    """Samples that the decoder leaves out at the start: of Opus its header has them (RFC 7845)."""
    is_head = codec == "opus" and config[:8] == b"OpusHead" and len(config) >= 12
    return int.from_bytes(config[10:12], "little") if is_head else said


def vorbis_lengths(config: bytes) -> NDArray[np.int64]:
    """The lengths that a packet of Vorbis may have, by the block before and its own."""
    at = config.find(b"\x01vorbis")
    if at < 0 or len(config) < at + 29:
        raise DataError("the sound of Vorbis has no identification header")
    short, long = 1 << (config[at + 28] & 15), 1 << (config[at + 28] >> 4)
    return np.array([short // 2, (short + long) // 4, long // 2], np.int64)


def vorbis_samples(head: bytes, setup: bytes, packets: Sequence[bytes]) -> NDArray[np.int64]:
    """Samples of each packet of Vorbis: int64 `[packets]`, 0 of the first, which only prepares.

    The mode of a packet sets its block's length; modes stand at the end of the setup header.
    """
    short, _, long = vorbis_lengths(head)
    flags = _mode_flags(setup)
    mask = (1 << (len(flags) - 1).bit_length()) - 1
    modes = np.array([each[0] if each else 0 for each in packets], np.int64) >> 1 & mask
    if modes.max(initial=0) >= len(flags):
        raise DataError("a packet of Vorbis has a mode that its header does not have")
    blocks = np.where(np.array(flags)[modes], long, short)
    counts = np.zeros(len(blocks), np.int64)
    counts[1:] = (blocks[:-1] + blocks[1:]) // 2
    return counts


def _mode_flags(setup: bytes) -> list[bool]:
    """Whether each mode has a long block, read from the end (Vorbis I, 4.2.4)."""
    bits = int.from_bytes(setup, "little")
    end = bits.bit_length() - 1  # the bit of the frame's end
    found: list[bool] = []
    flags: list[bool] = []
    while end - _MODE_BITS >= 6 and len(flags) < 64:
        end -= _MODE_BITS
        mode = bits >> end & ((1 << _MODE_BITS) - 1)
        if mode >> 1 & 0xFFFFFFFF or mode >> 33 > 63:
            break
        flags.insert(0, bool(mode & 1))
        if bits >> end - 6 & 63 == len(flags) - 1:
            found = list(flags)
    if not found:
        raise DataError("the setup header of Vorbis has no modes")
    return found
