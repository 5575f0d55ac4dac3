"""Damaged datasets of several files: a case is a zip of all of them, one of which is damaged."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.fuzz.damage import Case, altered, damaged, json_text
from tests.support.tfrecords import record_file
from tests.support.token_files import documents_of, write_litdata, write_megatron

FOREIGN = Path(__file__).parents[1] / "extensions" / "formats" / "foreign" / "data"
Files = Mapping[str, bytes]


def zipped(files: Files) -> bytes:
    """The same files give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return out.getvalue()


def unzip(data: bytes, folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)


def _files_in(folder: Path) -> Files:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@st.composite
def _folder(draw: Any, seeds: Callable[[], list[Files]]) -> Case:
    """One file of a dataset changed: JSON as a value, or anything as bytes."""
    files = draw(st.sampled_from(seeds()))
    name = draw(st.sampled_from(sorted(files)))
    data = files[name]
    if name.endswith(".json") and draw(st.sampled_from((True, True, False))):
        data = json_text(draw(altered(json.loads(data))))
    elif name.endswith(".tfrecord"):
        data = _damaged_records(draw, data)
    else:
        data = draw(damaged(data))
    return "case.zip", zipped({**files, name: data})


@lru_cache
def _mds() -> list[Files]:
    return [_files_in(path) for path in sorted(FOREIGN.glob("mds*"))]


@lru_cache
def _litdata() -> list[Files]:
    return [_files_in(path) for path in sorted(FOREIGN.glob("litdata*"))]


@lru_cache
def _tfrecord() -> list[Files]:
    return [_files_in(FOREIGN / "tfrecord")]


def _damaged_records(draw: Any, data: bytes) -> bytes:
    """A damaged file, or one whose records are damaged behind checksums that hold."""
    if draw(st.booleans()):
        return draw(damaged(data))
    records, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        records.append(data[at + 12 : at + 12 + length])
        at += length + 16
    place = draw(st.integers(0, len(records) - 1))
    records[place] = draw(damaged(records[place]))
    return record_file(records)


@lru_cache
def _tokens() -> list[Files]:
    documents = documents_of((5, 0, 9, 3))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "megatron").mkdir()
        write_megatron(folder / "megatron/case.bin", documents, sentences=2)
        write_litdata(folder / "litdata", [documents, documents[:2]], "no_header_numpy:5")
        found = [_files_in(folder / each) for each in ("megatron", "litdata")]
    array = io.BytesIO()
    np.save(array, np.arange(20, dtype=np.uint16))
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 20
    llmc = header.tobytes() + np.arange(20, dtype="<u2").tobytes()
    return [*found, {"case.npy": array.getvalue()}, {"case.bin": llmc}]


def _table() -> pa.Table:
    numbers = pa.array([1, None, 3, 4], pa.int32())
    text = pa.array(["a", "é" * 20, None, "d"])
    return pa.table(
        {
            "n": numbers,
            "flag": pa.array([True, None, False, True]),
            "text": text,
            "data": pa.array([b"\xff", b"", b"x" * 40, None]),
            "list": [[1.0, 2.0], [], None, [3.0]],
            "nested": [[["a"], []], [], None, [["b", "cd"]]],
            "part": pa.array([{"a": 1, "t": "x"}, {"a": None, "t": None}, None, {"a": 4, "t": ""}]),
            "image": pa.array([{"bytes": b"1", "path": None}] * 4,
                              pa.struct({"bytes": pa.binary(), "path": pa.string()})),
            "fixed": pa.array([[1, 2]] * 4, pa.list_(pa.int64(), 2)),
            "width": pa.array([b"ab"] * 4, pa.binary(2)),
            "word": text.dictionary_encode(),
            "map": pa.array([[("k", "v")], [], None, [("a", "b"), ("c", "d")]],
                            pa.map_(pa.string(), pa.string())),
            "view": text.cast(pa.string_view()),
            "parts": pa.array([[{"t": "x"}], [], None, [{"t": "y"}]]),
            "times": numbers.cast(pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip


@lru_cache
def _arrow() -> list[Files]:
    found = []
    table = _table()
    for make, codec in ((pa.ipc.new_file, None), (pa.ipc.new_file, "zstd"),
                        (pa.ipc.new_stream, None)):  # fmt: skip
        out = io.BytesIO()
        with make(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(table, max_chunksize=3)
        found.append({"case.arrow": out.getvalue()})
    return found


@lru_cache
def _hf() -> list[Files]:
    """As `save_to_disk` of Hugging Face datasets writes it."""
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    state = {
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "0" * 16,
        "_format_columns": None, "_format_kwargs": {}, "_format_type": None,
        "_output_all_columns": False, "_split": None,
    }  # fmt: skip
    info = {"citation": "", "description": "", "features": {}, "homepage": "", "license": ""}
    stream = _arrow()[2]["case.arrow"]
    return [
        {
            **dict.fromkeys(names, stream),
            "state.json": json_text(state),
            "dataset_info.json": json_text(info),
        }
    ]


@lru_cache
def _lance() -> list[Files]:
    from tests.support.lance_tables import make_table

    with tempfile.TemporaryDirectory() as folder:
        make_table(Path(folder, "t"), num_rows=30, max_rows_per_file=20)
        return [_files_in(Path(folder, "t"))]


@lru_cache
def _jsonl() -> list[Files]:
    text = b'{"a": 1, "b": [1, {"c": "\xc3\xa9"}]}\n\n{"a": null}\n{"b": "x"}'
    return [
        {"case.jsonl": text},
        {"case.jsonl.gz": gzip.compress(text, mtime=0)},
        {"case.jsonl.zst": bytes(pa.Codec("zstd").compress(text))},
    ]


strategies: dict[str, Callable[[], Any]] = {
    "arrow": lambda: _folder(_arrow),
    "hf": lambda: _folder(_hf),
    "jsonl": lambda: _folder(_jsonl),
    "lance": lambda: _folder(_lance),
    "litdata": lambda: _folder(_litdata),
    "mds": lambda: _folder(_mds),
    "tfrecord": lambda: _folder(_tfrecord),
    "tokens": lambda: _folder(_tokens),
}
