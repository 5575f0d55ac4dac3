"""Whether a file ends where its container says it does: a cut mkv or avi is read without error."""

from __future__ import annotations

import struct

from shardwise.errors import DataError

__all__ = ["check_end"]

_TS_PACKET = 188
_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = b"\x18\x53\x80\x67"


def check_end(data: bytes | memoryview) -> None:
    """Refuse a file that is shorter than its header says.

    Known for avi, wav, mkv, webm, mp4 and ts. Other containers do not say their length.

    Raises:
        DataError: it is.
    """
    view = memoryview(data)
    if not view.nbytes:
        raise DataError("the file is empty", offset=0)
    head = bytes(view[:64])
    if head[:4] == b"RIFF":
        expected = _riff_end(view)
    elif head[:4] == _EBML:
        expected = _matroska_end(view)
    elif head[4:8] in (b"ftyp", b"moov", b"styp"):
        expected = _mp4_end(view)
    elif head[0] == 0x47 and len(view) > _TS_PACKET and view[_TS_PACKET] == 0x47:
        expected = -(-len(view) // _TS_PACKET) * _TS_PACKET
    else:
        return
    if expected > len(view):
        raise DataError(
            f"the container says {expected} bytes, and the file has {len(view)}: it was cut",
            offset=len(view),
        )


def _riff_end(view: memoryview) -> int:
    """The end of all RIFF parts: large avi files have several."""
    at = 0
    while at + 8 <= len(view) and bytes(view[at : at + 4]) == b"RIFF":
        (size,) = struct.unpack_from("<I", view, at + 4)
        if size in (0, 0xFFFFFFFF):
            return len(view)  # written to a pipe: the length was never put in
        at += 8 + size + size % 2
    # Writers may leave out the last byte of padding.
    return at - 1 if at == len(view) + 1 else at


def _matroska_end(view: memoryview) -> int:
    at = 4
    size, at = _vint(view, at)
    if size is None:
        return len(view)
    at += size
    if bytes(view[at : at + 4]) != _SEGMENT:
        return len(view)
    size, at = _vint(view, at + 4)
    return len(view) if size is None else at + size


def _vint(view: memoryview, at: int) -> tuple[int | None, int]:
    """A number of variable length (RFC 8794, 4); None where it says that it is not known."""
    if at >= len(view) or not view[at]:
        return None, at
    length = 9 - int(view[at]).bit_length()
    value = int.from_bytes(view[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), at + length


def _mp4_end(view: memoryview) -> int:
    at = 0
    while at + 8 <= len(view):
        (size,) = struct.unpack_from(">I", view, at)
        if size == 1 and at + 16 <= len(view):
            (size,) = struct.unpack_from(">Q", view, at + 8)
        if size < 8:
            return len(view)
        at += size
    return at if at >= len(view) else at + 8
