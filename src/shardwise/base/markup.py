"""Values in one line, tables in HTML, small pictures as PNG: what `repr`s are made of.

Everything is escaped.
"""

from __future__ import annotations

import reprlib
import struct
import zlib
from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_BYTES, _MAX_CHARACTERS, _MAX_ENTRIES = 40, 80, 20
_PNG_COLOURS = {1: 0, 3: 2, 4: 6}


def short(value: Any) -> str:
    """A value in one line of some hundred characters, as `repr` has it where that is short.

    >>> short(b"x" * 1000), short(np.zeros((3, 224, 224)))
    ("<1,000 bytes b'xxxxxxxx'...>", '<float64 [3, 224, 224]>')
    """
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > _MAX_BYTES:
        return f"<{len(value):,} bytes {bytes(value[:8])!r}...>"
    if isinstance(value, str) and len(value) > _MAX_CHARACTERS:
        return f"<{len(value):,} characters {value[:60]!r}...>"
    if hasattr(value, "dtype") and len(getattr(value, "shape", ())) > 0:
        return f"<{value.dtype} {list(value.shape)}>"
    if isinstance(value, list | tuple | dict) and len(value) > _MAX_ENTRIES:
        return f"<{type(value).__name__} of {len(value):,} {reprlib.repr(value)}>"
    text = repr(value)
    return text if len(text) <= 2 * _MAX_CHARACTERS else f"{text[: 2 * _MAX_CHARACTERS]}..."


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """An HTML table of names and values, which are texts."""
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A file in the format of W3C's Portable Network Graphics, of uint8 `[H, W, 1 | 3 | 4]`."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOURS[channels], 0, 0, 0)
    # Each line starts with its filter: none.
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    parts = [b"\x89PNG\r\n\x1a\n"]
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(lines.tobytes()), b"IEND": b""}
    for kind, body in chunks.items():
        crc = zlib.crc32(kind + body)
        parts.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc))
    return b"".join(parts)
