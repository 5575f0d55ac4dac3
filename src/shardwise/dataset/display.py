"""Shows samples and datasets in a terminal and in a notebook.

A picture is shown as a thumbnail, everything else in one line.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import ShardwiseError
from shardwise.base.markup import png, short, table
from shardwise.codecs import image

_SIDE = 96  # pixels of a thumbnail
_MAX_FILE_BYTES = 8 << 20
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
PICTURE_BRANDS = (b"avif", b"heic", b"heix", b"mif1")  # of pictures, behind the size and "ftyp"


class Sample(dict[str, Any]):
    """A dict that prints in one line, with the sizes of what is large; copies are dicts."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {short(value)}' for name, value in self.items())}}}"

    def _repr_html_(self) -> str:
        rows = table("sample", [(name, short(value)) for name, value in self.items()])
        return f"{rows}{''.join(_pictures(self))}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _pictures(sample: Mapping[str, Any]) -> Iterable[str]:
    for name, value in sample.items():
        pixels = pixels_of(value)
        if pixels is not None:
            step = -(-max(pixels.shape[:2]) // _SIDE)
            data = base64.b64encode(png(pixels[::step, ::step])).decode()
            yield f"<img title='{escape(name)}' src='data:image/png;base64,{data}'>"


def pixels_of(value: Any) -> NDArray[np.uint8] | None:
    """The pixels of an encoded or decoded picture, uint8 `[H, W, C]`; None of anything else."""
    if isinstance(value, bytes):
        is_picture = value.startswith(_MAGIC) or value[8:12] in PICTURE_BRANDS
        if not is_picture or len(value) > _MAX_FILE_BYTES:
            return None
        try:
            value = image("rgb", layout="HWC")(value)
        except (ShardwiseError, ValueError):  # a missing package, or not a picture
            return None
    if not (hasattr(value, "__array__") and len(getattr(value, "shape", ())) in (2, 3)):
        return None
    pixels = np.asarray(value)
    if pixels.dtype.kind == "f" and pixels.size and pixels.min() >= 0 and pixels.max() <= 1:
        pixels = (pixels * 255).astype(np.uint8)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    elif pixels.shape[2] not in (1, 3, 4):
        pixels = np.moveaxis(pixels, 0, 2)
    is_picture = pixels.dtype == np.uint8 and pixels.shape[2] in (1, 3, 4)
    return pixels if is_picture and min(pixels.shape) > 0 else None
