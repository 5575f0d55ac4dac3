"""The header of an image file: format, size, EXIF orientation.

Read here and not by the backends, so that every backend gives the same picture: the bound on
pixels holds before memory is allocated, and orientation is applied in one place or not at all. The
data are hostile: a short or odd header raises ValueError.

Formats: JPEG (ITU T.81), PNG (W3C third edition), WebP (RFC 9649), GIF89a, BMP, TIFF 6.0, BigTIFF,
Exif 2.3. Pillow opens AVIF, whose pixels it gives as stored, and by the package pillow-heif HEIC,
whose pixels libheif turns by the file's orientation.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Container, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from shardwise.base.pillow_import import import_pillow


def find_heif(data: memoryview) -> str | None:
    """Return "avif" or "heif" by the brands of a file, None for another format."""
    if bytes(data[4:8]) != b"ftyp":
        return None
    brands = bytes(data[8 : min(int.from_bytes(data[:4], "big"), 256)])
    if b"avif" in brands or b"avis" in brands:
        return "avif"
    return "heif" if any(each in brands for each in (b"hei", b"hev", b"mif1", b"msf1")) else None


def open_heif(data: memoryview, name: str) -> Any:
    """Open a file as a Pillow image; ValueError if it is damaged or a package is missing."""
    pillow, needed = import_pillow(), "pillow-heif"
    try:
        if name == "heif":
            return import_module("pillow_heif").HeifImageFile(io.BytesIO(data))
        needed = "pillow>=11.3"
        if import_module("PIL.features").check("avif"):
            return pillow.open(io.BytesIO(data), formats=["AVIF"])
    except ImportError:
        pass
    except Exception as exc:  # as of Pillow's other formats, nearly every type
        raise ValueError(f"Pillow could not open the {name}: {exc}") from exc
    raise ValueError(f"nothing that is installed reads {name} files: pip install '{needed}'")


_WIDTH_TAG, _HEIGHT_TAG, _ORIENTATION_TAG = 256, 257, 274
_WHOLE_NUMBERS = {3: "H", 4: "I", 16: "Q"}
_EXIF_PREFIX = b"Exif\0\0"
# Start-of-frame markers: all of C0..CF but DHT (C4), JPG (C8) and DAC (CC).
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
# Fill bytes, markers without a payload, and where the segments end.
_ODD_MARKERS = frozenset((0x01, *range(0xD0, 0xDB), 0xFF))
# Marker and length of a segment; height and width in a frame header.
_SEGMENT, _FRAME = struct.Struct(">BBH"), struct.Struct(">HH")


class ImageHeader(NamedTuple):
    """Format and stored size of an image file, and where a JPEG's frame header has its payload."""

    format: str
    height: int
    width: int
    frame_at: int = 0


def probe(data: memoryview) -> ImageHeader:
    """Read format and size of an image from its first bytes."""
    if data.ndim > 1:
        raise ValueError(
            f"pixels, an array {list(data.shape or ())}, are no encoded image: leave this decoder "
            "out, and resize them in a map()"
        )
    frame_at = 0
    try:
        if bytes(data[:2]) == b"\xff\xd8":
            name, (_, frame_at) = "jpeg", find_segment(data, _FRAME_MARKERS)
            height, width = _FRAME.unpack_from(data, frame_at + 1)
        else:
            name, (height, width) = _measure(data, bytes(data[:16]))
    except (struct.error, IndexError, OverflowError) as exc:
        raise ValueError(f"an image of {len(data)} bytes ends inside its header") from exc
    if height < 1 or width < 1:
        raise ValueError(f"the {name} header says {height} x {width} pixels (height x width)")
    return ImageHeader(name, height, width, frame_at)


def _measure(data: memoryview, head: bytes) -> tuple[str, tuple[int, int]]:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", data, 16)
        return "png", (height, width)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp", _webp_size(data)
    if head.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
        return "gif", (height, width)
    if head.startswith(b"BM"):
        return "bmp", _bmp_size(data)
    if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        tags = {tag: value for tag, value, _ in tiff_entries(data, 0)}
        if _WIDTH_TAG not in tags or _HEIGHT_TAG not in tags:
            raise ValueError("the tiff header has no width or no height")
        return "tiff", (tags[_HEIGHT_TAG], tags[_WIDTH_TAG])
    if name := find_heif(data):
        with open_heif(data, name) as image:
            return name, image.size[::-1]
    raise ValueError(
        f"{len(data)} bytes that begin with {head!r} are no JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF "
        "or HEIC image: give the field another decoder"
    )


def jpeg_segments(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield (marker, offset of its payload) up to the first scan."""
    at = 2
    while True:
        if data[at] != 0xFF:
            raise ValueError(f"the jpeg has no marker at byte {at}: it is damaged there")
        at += 1
        while (marker := data[at]) == 0xFF:  # any number of fill bytes may stand before a marker
            at += 1
        at += 1
        if marker == 0x01 or 0xD0 <= marker <= 0xD9:  # markers without a payload
            continue
        yield marker, at + 2
        if marker == _START_OF_SCAN:
            return
        at += data[at] << 8 | data[at + 1]


def find_segment(data: memoryview, markers: Container[int]) -> tuple[int, int]:
    """Marker and payload's offset of the first segment, up to the first scan, of some markers."""
    # A third of the time of `jpeg_segments`, which takes the oddities.
    at, fill, marker = 2, 0xFF, 0
    while fill == 0xFF and marker not in _ODD_MARKERS:
        fill, marker, length = _SEGMENT.unpack_from(data, at)
        if fill == 0xFF and marker in markers:
            return marker, at + 4
        at += 2 + length
    for marker, at in jpeg_segments(data):
        if marker in markers:
            return marker, at
    raise ValueError("the jpeg has no frame header")


def is_plain_jpeg(data: memoryview) -> bool:
    """Whether an image is a JPEG of 8 bits, gray or in three colours; False if it is damaged."""
    if bytes(data[:2]) != b"\xff\xd8":
        return False
    try:
        _, at = find_segment(data, _FRAME_MARKERS)
        return data[at] == 8 and data[at + 5] in (1, 3)
    except (struct.error, IndexError, ValueError):
        return False


def _webp_size(data: memoryview) -> tuple[int, int]:
    kind = bytes(data[12:16])
    if kind == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        if len(data) < 30:
            raise IndexError
        return height, width
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return ((bits >> 14) & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF
    raise ValueError(f"the webp begins with an unknown chunk {kind!r}")


def _bmp_size(data: memoryview) -> tuple[int, int]:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return abs(height), width  # a negative height: rows from the top


def tiff_entries(data: memoryview, base: int) -> Iterator[tuple[int, int, int]]:
    """Yield (tag, first value, its offset) of the whole numbers in a TIFF's first directory."""
    order = "<" if data[base] == ord("I") else ">"
    is_big = struct.unpack_from(f"{order}H", data, base + 2) == (43,)  # BigTIFF
    pointer, counted, entry_bytes = ("Q", "Q", 20) if is_big else ("I", "H", 12)
    room = struct.calcsize(pointer)
    (start,) = struct.unpack_from(order + pointer, data, base + room)
    (count,) = struct.unpack_from(order + counted, data, base + start)
    start += base + struct.calcsize(order + counted)
    for entry in range(start, start + entry_bytes * count, entry_bytes):
        tag, kind, numbers = struct.unpack_from(f"{order}HH{pointer}", data, entry)
        if kind in _WHOLE_NUMBERS:
            at, form = entry + 4 + room, order + _WHOLE_NUMBERS[kind]
            if numbers * struct.calcsize(form) > room:
                at = base + struct.unpack_from(order + pointer, data, at)[0]
            if at + struct.calcsize(form) <= len(data):
                yield tag, struct.unpack_from(form, data, at)[0], at


def check_complete(data: memoryview, header: ImageHeader) -> None:
    """Refuse a JPEG or PNG without its end, for packages that do not.

    Some versions of OpenCV and Pillow fill the rest of a cut JPEG with gray in silence; OpenCV
    allocates the stated length of a PNG's chunk, even gigabytes.
    """
    if header.format == "jpeg" and bytes(data[-2:]) != b"\xff\xd9":
        # FF in a scan is always followed by 0 or a restart: FF D9 there is the end of the image.
        raw = bytes(data)
        if raw.find(b"\xff\xd9", max(raw.rfind(b"\xff\xda"), 0)) < 0:
            raise ValueError(f"the jpeg of {len(data)} bytes is cut: it has no end marker")
    if header.format == "png" and not any(kind == b"IEND" for kind, _ in _png_chunks(data)):
        raise ValueError(f"the png of {len(data)} bytes is cut or damaged: it has no end chunk")


def find_orientation(data: memoryview, name: str) -> tuple[int, int]:
    """The EXIF orientation of an image of the format `name`.

    Returns:
        The orientation, 1 to 8 (1, which is upright, if it is missing or can't be read: a camera's
        bad note does not damage the picture), and the offset of its two bytes.
    """
    if name in ("avif", "heif"):
        with open_heif(data, name) as image:
            orientation = image.getexif().get(_ORIENTATION_TAG)
        return orientation if orientation in range(1, 9) else 1, 0
    try:
        base = _exif_start(data, name)
        if base is not None and bytes(data[base : base + 2]) in (b"II", b"MM"):
            for tag, value, at in tiff_entries(data, base):
                if tag == _ORIENTATION_TAG and 1 <= value <= 8:
                    return value, at
    except (struct.error, IndexError, OverflowError):
        pass
    return 1, 0


def _exif_start(data: memoryview, name: str) -> int | None:
    """The start of the TIFF structure that holds the orientation."""
    if name == "tiff":
        return 0
    if name == "jpeg":
        for marker, at in jpeg_segments(data):
            if marker == 0xE1 and bytes(data[at : at + 6]) == _EXIF_PREFIX:
                return at + 6
    if name == "png":
        return next((at for kind, at in _png_chunks(data) if kind == b"eXIf"), None)
    if name == "webp":
        return _riff_chunk(data, b"EXIF")
    return None


def _png_chunks(data: memoryview) -> Iterator[tuple[bytes, int]]:
    """Yield (kind, offset of its content) for the chunks of a PNG, as far as the data go."""
    at = 8
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        yield kind, at + 8
        if kind == b"IEND":
            return
        at += 12 + length  # length, kind, content, checksum


def _riff_chunk(data: memoryview, name: bytes) -> int | None:
    """The start of the TIFF structure in a WebP's chunk."""
    at = 12
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        at += 8
        if kind == name:
            # Some writers put JPEG's prefix here, though the format has none.
            return at + 6 if bytes(data[at : at + 6]) == _EXIF_PREFIX else at
        at += length + length % 2
    return None
