"""A new decoder in one file, run-length masks as in COCO: python examples/mask_decoder.py.

Any callable of bytes is a decoder. With `row` and `decode_into` it writes each mask straight into
its row of the batch. Format: https://cocodataset.org/#format-data (uncompressed RLE).
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardwise as sw
from shardwise.testing import check_decoder

# A few bytes of run lengths can promise terabytes of pixels.
MAX_PIXELS = 1 << 26


@dataclass(frozen=True)
class MaskDecoder:
    """Decodes {"size": [height, width], "counts": [...]} to bool `[height, width]`.

    Args:
        size: (height, width) of all masks, which makes a batch one array `[B, height, width]`;
            None where they differ, which makes it a list.
    """

    size: tuple[int, int] | None = None

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every mask; None if they differ."""
        return None if self.size is None else (self.size, np.dtype(np.bool_))

    def __call__(self, data: bytes | memoryview) -> NDArray[np.bool_]:
        """Decode one mask.

        Raises:
            ValueError: it is damaged, or of another size.
        """
        try:
            mask = json.loads(bytes(data))
            height, width = map(int, mask["size"])
            counts = [int(count) for count in mask["counts"]]
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{len(data)} bytes are no run-length mask: {error!r}") from error
        if self.size not in (None, (height, width)) or not 0 <= height * width <= MAX_PIXELS:
            raise ValueError(f"a mask of {height} x {width} pixels, where size={self.size}")
        if min(counts, default=0) < 0 or sum(counts) != height * width:
            raise ValueError(f"the runs cover {sum(counts)} pixels of {height} x {width}")
        # Background and object in turn, down one column of pixels after the other.
        pixels = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
        return np.ascontiguousarray(pixels.reshape(height, width, order="F"))

    def decode_into(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        """Decode one mask into its row of a batch."""
        np.copyto(out, self(data))


def encode(mask: NDArray[np.bool_]) -> bytes:
    """The run-length form of a mask, bool `[height, width]`."""
    pixels = mask.reshape(-1, order="F")
    # The first run is background: of no pixels where the first one is the object's.
    borders = np.flatnonzero(np.diff(pixels, prepend=False))
    counts = np.diff(np.concatenate([[0], borders, [mask.size]])).tolist()
    return json.dumps({"size": mask.shape, "counts": counts}).encode()


def main() -> None:
    rows, columns = np.mgrid[:48, :64]
    masks = [(rows - 24) ** 2 + (columns - i) ** 2 < 100 for i in range(64)]
    payloads = [encode(mask) for mask in masks]
    check_decoder(MaskDecoder(), payloads)
    check_decoder(MaskDecoder(size=(48, 64)), payloads)
    print("check_decoder: the decoder keeps the protocol")

    with tempfile.TemporaryDirectory() as directory:
        with sw.TarWriter(Path(directory) / "masks-{shard:04d}.tar") as writer:
            for number, payload in enumerate(payloads):
                writer.write({"__key__": f"{number:06d}", "mask": payload})
        data = sw.tar(directory).decode(mask=MaskDecoder(size=(48, 64)))
        with sw.DataLoader(data, batch_size=16, shuffle=True, output="numpy") as loader:
            for batch in loader:
                for index, mask in zip(batch["__index__"], batch["mask"], strict=True):
                    assert np.array_equal(mask, masks[index])
        print(f"batches of {batch['mask'].dtype} {batch['mask'].shape}")


if __name__ == "__main__":
    main()
