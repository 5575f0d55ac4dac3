"""Writes `data` once, with the packages themselves; README.md has the command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.mosaic import without_torchvision
from tests.support.foreign_samples import (
    MDS_COLUMNS,
    NUM_SAMPLES,
    litdata_nested,
    litdata_row,
    litdata_sample,
    mds_sample,
    tfrecord_sample,
)

DATA = Path(__file__).parent / "data"


def write_mds(name: str, compression: str | None) -> None:
    without_torchvision()
    from streaming import MDSWriter

    out = DATA / name
    options = {"compression": compression, "hashes": ["sha1", "xxh64"] if compression else None}
    with MDSWriter(out=str(out), columns=MDS_COLUMNS, size_limit=1500, **options) as writer:
        for i in range(NUM_SAMPLES):
            writer.write(mds_sample(i))


def write_litdata(name: str, **options: str) -> None:
    import torch
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(DATA / name), chunk_size=4, **options)
    for i in range(NUM_SAMPLES):
        sample = litdata_sample(i)
        for field in ("floats", "plane"):
            sample[field] = torch.from_numpy(sample[field])
        writer.add_item(i, sample)
    writer.done()
    writer.merge(1)


def write_rows(
    name: str, sample: Callable[[int], dict[str, Any]] = litdata_row, **options: str
) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(DATA / name), chunk_size=4, **options)
    for i in range(NUM_SAMPLES):
        writer.add_item(i, sample(i))
    writer.done()
    writer.merge(1)


def write_tfrecord(path: Path, numbers: range) -> None:
    from tfrecord.writer import TFRecordWriter

    kinds = {"image": "byte", "label": "int", "score": "float", "boxes": "float", "ids": "int"}
    writer = TFRecordWriter(str(path))
    for i in numbers:
        sample = tfrecord_sample(i)
        datum = {name: (sample[name], kind) for name, kind in kinds.items()}
        if "rare" in sample:
            datum["rare"] = (sample["rare"], "byte")
        writer.write(datum)
    writer.close()


if __name__ == "__main__":
    shutil.rmtree(DATA, ignore_errors=True)
    (DATA / "tfrecord").mkdir(parents=True)
    write_mds("mds", None)
    for kind in ("zstd", "gz", "br", "bz2", "snappy"):
        write_mds(f"mds-{kind}", kind)
    write_litdata("litdata")
    for level in ("chunk", "batch", "sample"):
        write_litdata(f"litdata-{level}", compression="zstd", compression_level=level)
    write_rows("litdata-rows")
    write_rows("litdata-rows-zstd", compression="zstd")
    write_rows("litdata-nested", litdata_nested)
    write_tfrecord(DATA / "tfrecord" / "a.tfrecord", range(6))
    write_tfrecord(DATA / "tfrecord" / "b.tfrecord", range(6, NUM_SAMPLES))
