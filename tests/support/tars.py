"""Tar shards for tests, written with the standard library's tarfile: not with our own writer.

The sample with the global id g (0, 1, ... over all shards) has the key `s{g:08d}` and, of these,
the fields asked for:

- `txt`: its key; `cls`: the digit g % 10; `json`: `{"id": g}`;
- `bin`: 16 bytes, g twice as little-endian int64;
- `jpg`: a JPEG of 32 x 24 pixels (width x height), another one for each g; `png`: of 8 x 6.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}


def write_tar(
    path: str | Path,
    members: Iterable[tuple[str, bytes]],
    *,
    format: str = "ustar",  # noqa: A002
) -> str:
    """Write regular files into a tar, as `tar_bytes` does; returns the path as str."""
    Path(path).write_bytes(tar_bytes(members, format=format))
    return str(path)


def tar_bytes(members: Iterable[tuple[str, bytes]], *, format: str = "ustar") -> bytes:  # noqa: A002
    """A tar of regular files, in this order.

    `format` is "ustar", "gnu" (long names as `././@LongLink` members) or "pax" (long names in
    extended headers). Times and owners are 0, so equal members give equal bytes.
    """
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=FORMATS[format]) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def make_shards(
    directory: str | Path,
    sizes: Sequence[int],
    *,
    fields: Sequence[str] = ("bin", "cls", "txt"),
    start: int = 0,
) -> list[str]:
    """Write `part-000.tar`, `part-001.tar`, ... with `sizes[i]` samples each; returns the paths.

    Members stand in the order of `fields`. `start` is the global id of the first sample.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, size in enumerate(sizes):
        members = [
            (f"{sample_key(g)}.{field}", payload(g, field))
            for g in range(start, start + size)
            for field in fields
        ]
        paths.append(write_tar(directory / f"part-{number:03d}.tar", members))
        start += size
    return paths


def sample_key(g: int) -> str:
    return f"s{g:08d}"


def payload(g: int, field: str) -> bytes:
    return _PAYLOADS[field](g)


def _jpg(g: int) -> bytes:
    import cv2

    # Smooth, so that decoders which differ in rounding still agree closely.
    y, x = np.mgrid[0:24, 0:32]
    image = np.stack([x * 4 + g * 7, y * 5 + g * 13, x + y + g * 29], axis=-1) % 256
    done, data = cv2.imencode(".jpg", image.astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 92])
    assert done
    return bytes(data)


def _png(g: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 6), (g % 256, 2 * g % 256, 0)).save(file, "PNG")
    return file.getvalue()


_PAYLOADS: dict[str, Callable[[int], bytes]] = {
    "txt": lambda g: sample_key(g).encode(),
    "cls": lambda g: str(g % 10).encode(),
    "json": lambda g: json.dumps({"id": g}).encode(),
    "bin": lambda g: struct.pack("<qq", g, g),
    "jpg": _jpg,
    "png": _png,
}
