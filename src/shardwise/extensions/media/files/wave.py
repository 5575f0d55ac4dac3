"""The sound of a wav by its header alone: RIFF, RIFX and RF64 with PCM of any kind.

The length is that of the chunk `data`; of a stream, whose length was never put in (0 or all ones),
it goes to the file's end.
"""

from __future__ import annotations

import struct

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.byte_reader import RangeReader, read_exactly
from shardwise.extensions.media.files.container_ends import UNKNOWN, check_size
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.track import Track, TrackColumns

# FFmpeg's names by code and bits, without the order of bytes.
_CODECS = {
    (1, 8): "pcm_u8", (1, 16): "pcm_s16", (1, 24): "pcm_s24", (1, 32): "pcm_s32",
    (3, 32): "pcm_f32", (3, 64): "pcm_f64", (6, 8): "pcm_alaw", (7, 8): "pcm_mulaw",
}  # fmt: skip
_CODES = frozenset(code for code, _ in _CODECS)
_EXTENSIBLE = 0xFFFE
_PACKET_SAMPLES = 4096


def is_wave(head: bytes) -> bool:
    """Whether a file of this start (12 bytes) is a wav."""
    return head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE"


def read_wave(reader: RangeReader, head: bytes | memoryview, limits: Limits) -> Track | None:
    """The track of a wav that starts with `head`; None for a codec that is not PCM."""
    end, held = reader.num_bytes, bytes(head)
    order = ">" if held[:4] == b"RIFX" else "<"
    (riff_size,) = struct.unpack_from(f"{order}I", held, 4)
    begin, size, chunks = _to_data(reader, held, order)
    form, long_sizes = chunks.get(b"fmt ", b""), chunks.get(b"ds64", b"")[:16]
    if len(form) < 16:
        raise DataError("the wav has no whole chunk b'fmt ' before its data", offset=12)
    code, channels, rate, _, align = struct.unpack_from(f"{order}HHIIH", form)
    if code == _EXTENSIBLE and len(form) >= 26:
        (code,) = struct.unpack_from(f"{order}H", form, 24)
    if code not in _CODES:
        return None
    if not channels or not rate or not align or align % channels:
        raise DataError(f"the wav says {channels} channels, {rate} a second, {align} bytes of each")
    codec = _CODECS.get((code, align // channels * 8))
    if codec is None:
        return None
    if codec[-2:] in ("16", "24", "32", "64"):
        codec += "be" if order == ">" else "le"
    if len(long_sizes) == 16:
        riff_size, size = struct.unpack("<QQ", long_sizes)
    if size in UNKNOWN:
        size = max(0, end - begin)
    elif riff_size not in UNKNOWN:
        # Writers may leave out the last byte of padding.
        check_size(8 + riff_size - (8 + riff_size == end + 1), end)
    check_size(begin + size, end)
    limits.check_frames(size // align // _PACKET_SAMPLES, "packets")
    return _track(codec, (channels, rate, align), begin, size // align)


def _to_data(reader: RangeReader, held: bytes, order: str) -> tuple[int, int, dict[bytes, bytes]]:
    """The start of the data, their size as it is written, and the chunks before (40 bytes each)."""
    at = 12
    chunks: dict[bytes, bytes] = {}
    while True:
        head = _part(reader, held, at, 8)
        if len(head) < 8:
            raise DataError("the wav has no chunk b'data': was it cut?", offset=reader.num_bytes)
        name, size = struct.unpack(f"{order}4sI", head)
        if name == b"data":
            return at + 8, size, chunks
        chunks[name] = _part(reader, held, at + 8, min(size, 40))
        at += 8 + size + size % 2


def _part(reader: RangeReader, held: bytes, at: int, size: int) -> bytes:
    if at + size <= len(held):
        return held[at : at + size]
    stop = min(at + size, reader.num_bytes)
    return bytes(read_exactly(reader, at, stop)) if at < stop else b""


def _track(codec: str, form: tuple[int, int, int], begin: int, length: int) -> Track:
    channels, rate, align = form
    count = -(-length // _PACKET_SAMPLES)
    starts = np.arange(count, dtype=np.int64) * _PACKET_SAMPLES
    samples = np.minimum(_PACKET_SAMPLES, length - starts)
    always = np.ones(count, np.bool_)
    columns = TrackColumns(starts, samples, samples * align, begin + starts * align, always, always)
    return Track(
        kind="audio", codec=codec, config=b"", time_base=(1, rate), columns=columns,
        rate=rate, num_channels=channels, length=length,
    )  # fmt: skip
