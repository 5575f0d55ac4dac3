"""AVIF and HEIC files, which Pillow opens, the second by the package pillow-heif.

Their sizes lie among boxes of tiles and thumbnails: the packages measure them. Pillow gives AVIF's
pixels as stored; libheif turns HEIC's as the file says.
"""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

from shardwise.base.pillow_import import import_pillow

_BRANDS = {b"avif": "avif", b"avis": "avif"} | dict.fromkeys(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"), "heif"
)


def find_heif(data: memoryview) -> str | None:
    """Return "avif" or "heif" by the brands of a file, None for another format."""
    if bytes(data[4:8]) != b"ftyp":
        return None
    end = min(int.from_bytes(data[:4], "big"), len(data), 256)
    found = {_BRANDS.get(bytes(data[at : at + 4])) for at in (8, *range(16, end, 4))}
    return "avif" if "avif" in found else "heif" if "heif" in found else None


def open_heif(data: memoryview, name: str) -> Any:
    """Open a file as a Pillow image, whose pixels are decoded later.

    Raises:
        ValueError: it is damaged, or the package that reads it is missing, which the message names.
    """
    pillow, needed = import_pillow(), "pillow-heif"
    try:
        if name == "heif":
            return import_module("pillow_heif").HeifImageFile(io.BytesIO(data))
        needed = "pillow>=11.3" if not import_module("PIL.features").check("avif") else ""
        if not needed:
            return pillow.open(io.BytesIO(data), formats=["AVIF"])
    except ImportError:
        pass
    except Exception as exc:  # as of Pillow's other formats, nearly every type
        raise ValueError(f"Pillow could not open the {name}: {exc}") from exc
    raise ValueError(
        f"{name} files are read by a package that is not installed: pip install '{needed}'"
    )
