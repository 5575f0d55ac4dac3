"""Local files that change under an open dataset: each read gives what was opened, or an error.

What replaces a file is as long as it was, and differs from it in the payloads alone: `NEW` for
`OLD`. Of each format there are two files: the first was read of before it changes.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from shardwise.base.errors import StaleIndexError
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.merge import merge_indexes
from shardwise.storage import local, versions
from tests.support.tars import write_tar
from tests.support.tfrecords import record_file
from tests.support.waiting import wait_for

OLD, NEW = b"old!" * 64, b"new!" * 64
ROWS = 3
# Of a dataset that lies there for long.
AGE_NS = 3600 * 10**9


def write_shards(folder: Path, suffix: str, write: Callable[[Path, int], Any]) -> list[Path]:
    paths = [folder / f"{number}{suffix}" for number in range(2)]
    for number, path in enumerate(paths):
        write(path, number)
        then = time.time_ns() - AGE_NS
        os.utime(path, ns=(then, then))
    return paths


def tar(folder: Path) -> tuple[list[Path], sw.Dataset]:
    def write(path: Path, number: int) -> None:
        write_tar(path, [(f"{number}-{row}.bin", OLD) for row in range(ROWS)])

    paths = write_shards(folder, ".tar", write)
    return paths, sw.tar(paths)


def listed_tar(folder: Path) -> tuple[list[Path], sw.Dataset]:
    paths, shards = tar(folder)
    len(shards)
    merge_indexes(str(folder / "train.swm"), list(map(str, paths)), store=IndexStore())
    return paths, sw.tar(folder / "train.swm")


def _write_records(path: Path, number: int) -> None:
    sample = struct.pack("<I", len(OLD)) + OLD
    places = 4 * (ROWS + 2) + len(sample) * np.arange(ROWS + 1)
    path.write_bytes(struct.pack("<I", ROWS) + places.astype("<u4").tobytes() + sample * ROWS)


def mds(folder: Path) -> tuple[list[Path], sw.Dataset]:
    paths = write_shards(folder, ".mds", _write_records)
    shards = [
        {"format": "mds", "version": 2, "column_names": ["bin"], "column_encodings": ["bytes"],
         "column_sizes": [None], "samples": ROWS, "zip_data": None,
         "raw_data": {"basename": path.name, "bytes": path.stat().st_size}}
        for path in paths
    ]  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return paths, sw.mds(folder)


def litdata(folder: Path) -> tuple[list[Path], sw.Dataset]:
    paths = write_shards(folder, ".bin", _write_records)
    chunks = [
        {"filename": path.name, "chunk_size": ROWS, "chunk_bytes": path.stat().st_size}
        for path in paths
    ]
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.dict", "context": '["bin"]', "children_spec": [leaf]}
    config = {"data_format": ["bytes"], "data_spec": json.dumps([1, spec])}
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return paths, sw.litdata(folder)


def tfrecord(folder: Path) -> tuple[list[Path], sw.Dataset]:
    content = record_file([OLD] * ROWS)
    paths = write_shards(folder, ".tfrecord", lambda path, _: path.write_bytes(content))
    return paths, sw.tfrecord(paths, features=())


def _table() -> pa.Table:
    return pa.table({"bin": pa.array([OLD] * ROWS, pa.binary())})


def parquet(folder: Path) -> tuple[list[Path], sw.Dataset]:
    def write(path: Path, number: int) -> None:
        pq.write_table(_table(), path, compression="none", use_dictionary=False)

    paths = write_shards(folder, ".parquet", write)
    return paths, sw.parquet(paths)


def arrow(folder: Path) -> tuple[list[Path], sw.Dataset]:
    def write(path: Path, number: int) -> None:
        with pa.ipc.new_stream(path, _table().schema) as stream:
            stream.write_table(_table())

    paths = write_shards(folder, ".arrow", write)
    return paths, sw.parquet(paths)


def tokens(folder: Path) -> tuple[list[Path], sw.Dataset]:
    # Of text only tokens of one byte are read.
    content = OLD * ROWS + OLD[:1]
    paths = write_shards(folder, ".bin", lambda path, _: path.write_bytes(content))
    return paths, sw.tokens(paths, block=len(OLD), dtype="uint8")


def _write_images(folder: Path) -> list[Path]:
    (folder / "a").mkdir()
    return write_shards(folder / "a", ".jpg", lambda path, _: path.write_bytes(OLD))


def files(folder: Path) -> tuple[list[Path], sw.Dataset]:
    return _write_images(folder), sw.files(folder)


def listed_files(folder: Path) -> tuple[list[Path], sw.Dataset]:
    paths = _write_images(folder)
    (folder / "list.csv").write_text("path\na/0.jpg\na/1.jpg\n")
    return paths, sw.files(folder / "list.csv")


FORMATS = [tar, listed_tar, mds, litdata, tfrecord, parquet, arrow, tokens, files, listed_files]


def rename_over(path: Path, content: bytes) -> None:
    path.with_name("new").write_bytes(content)
    os.replace(path.with_name("new"), path)


def write_in_place(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def replace(path: Path, change: Callable[[Path, bytes], None]) -> None:
    content = path.read_bytes()
    assert OLD in content
    change(path, content.replace(OLD, NEW).replace(OLD[:2], NEW[:2]))
    # The clock of a file system may stand for some ms.
    now = time.time_ns()
    os.utime(path, ns=(now, now))


def payload(data: sw.Dataset, index: int) -> bytes | StaleIndexError:
    """The first bytes of a sample, or the error that names its file."""
    try:
        read = data.source.read(np.array([index]))
    except StaleIndexError as error:
        return error
    (name,) = set(data.fields) - {"cls", "class"}
    return bytes(read.fields[name][0])[: len(OLD)]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at a file after each read, and trust the clock of the file system."""
    monkeypatch.setattr(local, "LOOK_EVERY_NS", 0)
    monkeypatch.setattr(versions, "CLOCKS_DIFFER_NS", 0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("change", [rename_over, write_in_place])
@pytest.mark.parametrize("make", FORMATS)
def test_a_file_of_the_same_length_is_never_taken_for_the_one_that_was_opened(
    tmp_path, make, change
):
    paths, data = make(tmp_path)
    assert payload(data, 0) == OLD
    for path in paths:
        replace(path, change)
    worker = pickle.loads(pickle.dumps(data))
    for path, index in zip(paths, (0, len(data) - 1), strict=True):
        here, there = payload(data, index), payload(worker, index)
        # What was decoded before, and files that are open and were renamed over, are read on.
        is_decoded = make is parquet and index == 0
        assert here == OLD if isinstance(here, bytes) else _names(here, path)
        assert is_decoded or change is rename_over or isinstance(here, StaleIndexError)
        assert isinstance(there, StaleIndexError)
        # A process that finds the records of TFRecord files anew looks at all of them.
        assert make is tfrecord or _names(there, path)


def _names(error: StaleIndexError, path: Path) -> bool:
    return error.url == str(path) and "open the dataset a" in str(error)


def test_a_file_written_in_place_is_noticed_while_it_is_read(tmp_path):
    paths, data = tar(tmp_path)
    assert payload(data, 0) == OLD
    replace(paths[0], write_in_place)
    wait_for(lambda: isinstance(payload(data, 0), StaleIndexError))


def test_a_copied_shard_that_is_replaced_by_a_shorter_one_is_not_said_to_be_cut(tmp_path):
    (tmp_path / "original").mkdir()
    (first, second), data = tar(tmp_path / "original")
    len(data)
    shutil.copytree(tmp_path / "original", tmp_path / "copy", copy_function=shutil.copyfile)
    data = sw.tar(tmp_path / "copy")
    assert payload(data, 0) == OLD
    path = tmp_path / "copy" / second.name
    rename_over(path, first.read_bytes()[:1024] + bytes(1024))
    error = payload(data, ROWS)
    assert isinstance(error, StaleIndexError)
    assert _names(error, path)
