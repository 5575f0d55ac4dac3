"""AVIF and HEIC files, which Pillow opens, the second by the package pillow-heif.

Pillow gives AVIF's pixels as stored; libheif turns HEIC's by the file's orientation.
"""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

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
