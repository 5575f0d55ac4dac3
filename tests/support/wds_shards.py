"""Shards as WebDataset's programs read them: ten of 6 to 15 samples with pictures, and videos."""

from __future__ import annotations

import io
from pathlib import Path

from tests.support.tars import make_shards, payload, sample_key, write_tar

SIZES = tuple(range(6, 16))


def png_shards(directory: Path) -> list[str]:
    """Write the shards, with `cls`, `json` ({"id": ...}) and `png` (8 x 6 pixels); the paths."""
    return make_shards(directory, SIZES, fields=("cls", "json", "png"))


def video_shards(directory: Path) -> list[str]:
    """Write four shards of two silent videos each (3 frames of 32 x 16 pixels), with `json`."""
    directory.mkdir(parents=True, exist_ok=True)
    urls = []
    for number in range(4):
        members = []
        for g in (2 * number, 2 * number + 1):
            key = sample_key(g)
            members += [(f"{key}.json", payload(g, "json")), (f"{key}.mp4", _video())]
        urls.append(write_tar(directory / f"video-{number}.tar", members))
    return urls


def _video() -> bytes:
    import av
    import numpy as np

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for number in range(3):
            pixels = np.full((16, 32, 3), 50 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()
