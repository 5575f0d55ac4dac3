"""The ends of containers by their headers: a file that is shorter was cut."""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.boxes import box_header
from shardwise.extensions.media.files.sample_description import check_channel_order

_TS_PACKET = 188
_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = b"\x18\x53\x80\x67"
_CLUSTER = b"\x1f\x43\xb6\x75"
# Identifiers in segments that have not 4 bytes (RFC 9559): padding, checksums, parts of clusters.
_SHORT = frozenset(map(bytes.fromhex, ["ec", "bf", "e7", "a3", "a0", "a7", "ab", "af", "5854"]))
# A CRC-32 with its length, 4.
_CHECKSUM = b"\xbf\x84"
_W64 = bytes.fromhex("72696666912ecf11a5d628db04c10000")
# The start of asf, and the object in its header that has the file's size.
_ASF = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
# Sizes of what was written to a pipe: they were never put in.
UNKNOWN = (0, 0xFFFFFFFF)


def check_end(data: bytes | memoryview) -> None:
    """Reject a file that is shorter than its header says, and a container of damaged structure."""
    view = memoryview(data)
    head = bytes(view[:64])
    expected = len(view)
    if head[0] == 0x47 and len(view) > _TS_PACKET and view[_TS_PACKET] == 0x47:
        expected = -(-len(view) // _TS_PACKET) * _TS_PACKET
        marks = bytes(view[::_TS_PACKET])
        if bad := marks.lstrip(b"G"):
            at = (len(marks) - len(bad)) * _TS_PACKET
            raise DataError("a packet of the ts does not begin with 0x47: damaged", offset=at)
    elif head[4:8] in (b"ftyp", b"moov", b"styp"):
        expected = _mp4_end(view)
    else:
        end = next((end for mark, end in _ENDS.items() if head.startswith(mark)), None)
        expected = expected if end is None else end(view)
    check_size(expected, len(view))


def check_size(expected: int, num_bytes: int) -> None:
    """Raise DataError for a file that is shorter than expected."""
    if expected > num_bytes:
        raise DataError(
            f"the container says {expected} bytes, and the file has {num_bytes}: it was cut",
            offset=num_bytes,
        )


def _riff_end(view: memoryview, order: str = "<I") -> int:
    """The end of all RIFF parts: large avi files have several."""
    at = 0
    kind = bytes(view[:4])
    while at + 8 <= len(view) and bytes(view[at : at + 4]) == kind:
        (size,) = struct.unpack_from(order, view, at + 4)
        if size in UNKNOWN:
            return len(view)  # written to a pipe: the length was never put in
        at += 8 + size + size % 2
    # Writers may leave out the last byte of padding.
    return at - 1 if at == len(view) + 1 else at


def _avi_or_wav_end(view: memoryview) -> int:
    end, at = _riff_end(view), 0
    while bytes(view[8:12]) == b"AVI " and at + 12 <= min(end, len(view)):
        name, size, kind = struct.unpack_from("<4sI4s", view, at)
        is_list = name == b"RIFF" or (name == b"LIST" and kind in (b"movi", b"rec "))
        start, at = at, at + (12 if is_list else 8 + size)
        # Some writers pad no chunk of an odd length; no name starts with a zero.
        if not is_list and size % 2 and bytes(view[at : at + 1]) == b"\0":
            at += 1
        if min(name) < 32 or at > end + 1:
            raise DataError("parts of the avi do not follow one another: damaged", offset=start)
    return end


def _aiff_end(view: memoryview) -> int:
    at = 12
    while at + 12 <= len(view):
        if bytes(view[at : at + 4]) == b"CHAN":
            check_channel_order((at + 4, len(view)), view)
        (size,) = struct.unpack_from(">I", view, at + 4)
        at += 8 + size + size % 2
    return _riff_end(view, ">I")


def _rf64_end(view: memoryview) -> int:
    """RF64 has its size in the first chunk, `ds64` (EBU Tech 3306)."""
    known = bytes(view[12:16]) == b"ds64" and len(view) >= 28
    return 8 + int.from_bytes(view[20:28], "little") if known else len(view)


def _asf_end(view: memoryview) -> int:
    at = bytes(view[: 1 << 16]).find(_ASF_FILE)
    return len(view) if at < 0 else int.from_bytes(view[at + 40 : at + 48], "little")


def _au_end(view: memoryview) -> int:
    begin, size = struct.unpack_from(">II", view, 4) if len(view) >= 12 else (0, 0)
    return len(view) if size in UNKNOWN else int(begin + size)


def _caf_end(view: memoryview) -> int:
    at = 8
    while at + 12 <= len(view):
        (size,) = struct.unpack_from(">q", view, at + 4)
        if bytes(view[at : at + 4]) == b"chan":
            check_channel_order((at + 8, len(view)), view)
        if size < 0:
            return len(view)  # the last chunk, of a length that was never put in
        at += 12 + size
    return at


def _matroska_end(view: memoryview) -> int:
    size, at = _vint(view, 4)
    at += size or 0
    if size is None or bytes(view[at : at + 4]) != _SEGMENT:
        return len(view)
    size, at = _vint(view, at + 4)
    end = len(view) if size is None else at + size
    while at < min(end, len(view)):
        start, id_bytes = at, 9 - int(view[at]).bit_length()
        name = bytes(view[at : at + id_bytes])
        size, at = _vint(view, at + id_bytes)
        stop = at + (size or 0)
        # Clusters of live streams have no size.
        is_known = size is not None or name == _CLUSTER
        if not is_known or stop > end or (id_bytes != 4 and name not in _SHORT):
            raise DataError("parts of the mkv do not follow one another: damaged", offset=start)
        if stop > at + 6 and bytes(view[at : at + 2]) == _CHECKSUM and stop <= len(view):
            told = int.from_bytes(view[at + 2 : at + 6], "little")
            if told != crc32(view[at + 6 : stop]):
                raise DataError("a part of the mkv is damaged: its CRC-32 differs", offset=start)
        at = at if name == _CLUSTER else stop
    return end


def _vint(view: memoryview, at: int) -> tuple[int | None, int]:
    """A number of variable length (RFC 8794, 4); None if it is marked as unknown."""
    if at >= len(view) or not view[at]:
        return None, at
    length = 9 - int(view[at]).bit_length()
    value = int.from_bytes(view[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), at + length


def _mp4_end(view: memoryview) -> int:
    at = 0
    while at + 8 <= len(view):
        size, _, header = box_header(view, at, len(view))
        if size < header:
            return len(view)
        at += size
    return at if at >= len(view) else at + 8


_ENDS: dict[bytes, Callable[[memoryview], int]] = {
    b"RIFF": _avi_or_wav_end, b"FORM": _aiff_end, b"RF64": _rf64_end, b".snd": _au_end,
    _W64: lambda view: int.from_bytes(view[16:24], "little"), b"caff": _caf_end,
    _EBML: _matroska_end, _ASF: _asf_end,
}  # fmt: skip
