"""Tar shards to try the library on: `python -m shardwise.demo_data [DIRECTORY]`.

1,797 handwritten digits, which scikit-learn brings, as JPEG of 64 x 64 in four shards.
"""

from __future__ import annotations

import io
import sys

from shardwise.sources.tar.write.writer import TarWriter


def write_digits(directory: str) -> int:
    """Write `train-000000.tar` to `train-000003.tar`, and return the number of samples.

    A sample has an image ("jpg"), its class from 0 to 9 ("cls") and a caption ("txt").
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pattern = f"{directory}/train-{{shard:06d}}.tar"
    with TarWriter(pattern, max_samples=450, overwrite=True) as writer:
        for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            file = io.BytesIO()
            Image.fromarray((pixels * 15.9).astype("uint8")).resize((64, 64)).save(file, "JPEG")
            sample = {"jpg": file.getvalue(), "cls": int(label), "txt": f"a handwritten {label}"}
            writer.write({"__key__": f"{number:04d}", **sample})
    return len(digits.images)


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "shards"
    sys.stdout.write(f"{write_digits(folder):,} samples in {folder}/train-{{000000..000003}}.tar\n")
