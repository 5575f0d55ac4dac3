"""JPEG to 224 x 224 by every interpolation: CPU time, and how far from torch's result.

The floor is simplejpeg and OpenCV's plain linear resize, without halving. Ways take turns; the
medians of their ratios to the floor count. torch's antialiased resize is the one that torchvision
calls.

    python -m benchmarks.image_resize --rounds 9
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZE = 224
SIDES = ((375, 500), (720, 1280), (1080, 1920), (3000, 4000))


def picture(height: int, width: int) -> Any:
    """A picture with detail at all scales, and grain."""
    import cv2

    rng = np.random.default_rng(0)
    pixels = np.zeros((height, width, 3))
    for step in (2, 4, 8, 16, 32, 64):
        coarse = rng.normal(size=(height // step + 2, width // step + 2, 3))
        pixels += step**0.7 * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    pixels = (pixels - pixels.min()) / np.ptp(pixels) * 255
    return (pixels + rng.normal(0, 3, pixels.shape)).clip(0, 255).astype(np.uint8)


def ways(data: bytes) -> dict[str, Callable[[], Any]]:
    """What decodes one file: name -> function."""
    import cv2
    import simplejpeg
    import torch
    from PIL import Image

    import shardwise as sw

    cv2.setNumThreads(1)
    torch.set_num_threads(1)

    def torchs(mode: str) -> Any:
        planes = torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)[None]
        resize = torch.nn.functional.interpolate
        return resize(planes, (SIZE, SIZE), mode=mode, antialias=True)[0].permute(1, 2, 0).numpy()

    def pillows() -> Any:
        image = Image.fromarray(simplejpeg.decode_jpeg(data))
        return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))

    made: dict[str, Callable[[], Any]] = {
        "floor": lambda: cv2.resize(simplejpeg.decode_jpeg(data), (SIZE, SIZE)),
        "simplejpeg + torch, bilinear": lambda: torchs("bilinear"),
        "simplejpeg + torch, bicubic": lambda: torchs("bicubic"),
        "simplejpeg + Pillow, bilinear": pillows,
    }
    for name in ("bilinear", "bicubic", "area", "linear"):
        decoder: Any = sw.image(size=SIZE, layout="HWC", interpolation=name)
        made[f'sw.image, "{name}"'] = lambda decoder=decoder: decoder(data)
    return made


def main() -> None:
    import simplejpeg

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each way in each round")
    options = parser.parse_args()
    print("| JPEG | way | CPU ms | of the floor | mean / max levels from torch |")
    print("|---|---|---:|---:|---:|")
    for height, width in SIDES:
        made = ways(simplejpeg.encode_jpeg(picture(height, width), quality=90))
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(options.rounds):
            for name, decode in made.items():
                decode()
                count, began = 0, time.thread_time()
                while time.thread_time() - began < options.seconds:
                    decode()
                    count += 1
                times[name].append((time.thread_time() - began) / count)
        for name, own in times.items():
            ratio = statistics.median(a / b for a, b in zip(own, times["floor"], strict=True))
            reference = made[
                f"simplejpeg + torch, {'bicubic' if 'bicubic' in name else 'bilinear'}"
            ]
            off = np.abs(made[name]().astype(int) - reference())
            levels = f"{off.mean():.2f} / {off.max()}"
            ms = 1000 * statistics.median(own)
            print(f"| {width} x {height} | {name} | {ms:.2f} | {ratio:.2f} | {levels} |")


if __name__ == "__main__":
    main()
