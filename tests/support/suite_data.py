"""The files that WebDataset's and wids' own test suites read, made up: noise in the same shapes.

The source packages hold the tests alone; what the tests expect of the files is in their text.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path

import msgpack
import numpy as np
import PIL.Image

from tests.support.tars import tar_bytes, write_tar

NUM_REMOTE_SHARDS = 4
_NUM_IMAGES = 47
_FIRST_IMAGE = (793, 600)  # height, width


def make_testdata(folder: Path) -> None:
    """Fill `testdata`, the folder that the suites read beside themselves."""
    folder.mkdir()
    (folder / "imagenet-000000.tgz").write_bytes(gzip.compress(tar_bytes(_images())))
    texts = {"0001": b"hello\n", "0002": b"world\n", "0003": b"gzip\n"}
    write_tar(
        folder / "compressed.tar",
        ((f"compressed/{key}.txt.gz", gzip.compress(text)) for key, text in texts.items()),
    )
    write_tar(
        folder / "mpdata.tar",
        ((f"{n:06d}.mp", msgpack.packb({"x": n, "y": n * n})) for n in range(100)),
    )
    rng = np.random.default_rng(0)
    write_tar(
        folder / "tendata.tar",
        ((f"{n:06d}.ten", _ten(list(rng.random((2, 28, 28))))) for n in range(100)),
    )
    # The first text is the one that a test of wids wants to see.
    lines = [b", or more info on the item.", *(b"line %d" % n for n in range(1, 1000))]
    write_tar(
        folder / "testgz.tar",
        ((f"{n:06d}.txt.gz", gzip.compress(line)) for n, line in enumerate(lines)),
    )
    write_tar(folder / "ixtest.tar", _labelled_images(10, "jpg"))


def make_served_files(folder: Path) -> None:
    """Fill the folder of the web server that stands for the ones on the internet."""
    # The two that tests name outright.
    bucket = folder / "webdataset"
    (bucket / "testdata").mkdir(parents=True)
    imagenet = bucket / "testdata" / "imagenet-000000.tgz"
    imagenet.write_bytes(gzip.compress(tar_bytes(_images())))
    (bucket / "d-tokens").mkdir()
    for n in (0, 2):
        with tarfile.open(bucket / f"d-tokens/d-tokens-{n:06d}.tar", "w") as tar:
            info = tarfile.TarInfo("0.tokens")
            # A time with a fraction is what gives the first header its PAX form.
            info.mtime, info.size = 0.5, 4
            tar.addfile(info, io.BytesIO(b"1234"))
    # Those that they have from conftest.py.
    own = folder / "shards"
    own.mkdir()
    for shard in range(NUM_REMOTE_SHARDS):
        first = 30 * shard
        write_tar(own / f"shard-{shard:06d}.tar", _described_images(range(first, first + 30)))
    write_tar(own / "sample.tar", [("10.cls", b"0"), ("10.png", _noise(8, 8, "PNG", 10))])


def _images() -> Iterable[tuple[str, bytes]]:
    for n in range(_NUM_IMAGES):
        height, width = (24, 32) if n else _FIRST_IMAGE
        yield f"{n:04d}.cls", b"%d" % (n % 10)
        yield f"{n:04d}.png", _noise(height, width, "PNG", n)
        yield f"{n:04d}.wnid", b"n%08d" % n
        yield f"{n:04d}.xml", b"<annotation/>"


def _labelled_images(count: int, extension: str) -> Iterable[tuple[str, bytes]]:
    for n in range(count):
        yield f"{n:04d}.cls", b"%d" % n
        yield f"{n:04d}.{extension}", _noise(24, 32, "JPEG", n)


def _described_images(numbers: Iterable[int]) -> Iterable[tuple[str, bytes]]:
    for n in numbers:
        yield f"{n:06d}.jpg", _noise(24, 32, "JPEG", n)
        yield f"{n:06d}.json", b'[{"label": %d}]' % n


def _noise(height: int, width: int, format: str, seed: int) -> bytes:  # noqa: A002
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def _ten(arrays: Iterable[np.ndarray]) -> bytes:
    """Arrays in tenbin format, written from its description and not with our own encoder."""
    chunks = []
    for array in arrays:
        header = struct.pack(f"<8s8sq{array.ndim}q", b"f8", b"", array.ndim, *array.shape)
        chunks += [header, array.astype("<f8").tobytes()]
    return b"".join(
        b"~TenBin~" + struct.pack("<q", len(chunk)) + chunk + bytes(-len(chunk) % 64)
        for chunk in chunks
    )
