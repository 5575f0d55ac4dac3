"""Encoding pictures for a tar: Pillow images and arrays of pixels, by the field's extension."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np

from shardwise.base.pillow_import import import_pillow

# Extension -> Pillow's format, and its options. 95 is where JPEG's loss stops being seen; encode
# the picture yourself, and give bytes, for another quality.
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "jpg": ("JPEG", {"quality": 95}),
    "jpeg": ("JPEG", {"quality": 95}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {"quality": 95}),
}
_CHANNELS = (1, 3, 4)


def is_picture(value: object) -> bool:
    """Whether it is a Pillow image or an array."""
    if isinstance(value, np.ndarray):
        return True
    # If the value is an image of Pillow, Pillow is imported already.
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def encode_picture(value: Any, extension: str, where: str) -> bytes:
    """The file (one of `PICTURES`) of a Pillow image or uint8 `[height, width(, 1 | 3 | 4)]`."""
    pillow = import_pillow()
    if isinstance(value, np.ndarray):
        value = pillow.fromarray(_pixels(value, extension, where))
    name, options = PICTURES[extension]
    file = io.BytesIO()
    try:
        value.save(file, format=name, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: Pillow can't write this as {name}: {error}") from error
    return file.getvalue()


def _pixels(array: np.ndarray[Any, Any], extension: str, where: str) -> np.ndarray[Any, Any]:
    is_plane = array.ndim == 2
    is_image = array.ndim == 3 and array.shape[2] in _CHANNELS
    if array.dtype != np.uint8 or not (is_plane or is_image) or 0 in array.shape:
        raise ValueError(
            f"{where}: an array of {array.dtype} {list(array.shape)} is no picture: give uint8 "
            f"[height, width] or [height, width, 1, 3 or 4] for {extension}, or a field that ends "
            "in npy"
        )
    return np.ascontiguousarray(array[:, :, 0] if is_image and array.shape[2] == 1 else array)
