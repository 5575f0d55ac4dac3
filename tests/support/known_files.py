"""Starts of files of the formats that the library calls by name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from tests.support.tars import tar_bytes

_TABLE = pa.table({"x": [1, 2, 3]})


def written(write) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def stream(file) -> None:
    with pa.ipc.new_stream(file, _TABLE.schema) as writer:
        writer.write_table(_TABLE)


def chunk() -> bytes:
    return np.array([2, 16, 20, 24, 7, 8], "<u4").tobytes()


FILES = {
    "sound, video or WebP": b"fLaC" + bytes(40),
    "a RecordIO file of MXNet": b"\n#\xd7\xce" + bytes(40),
    "text in UTF-16": "\ufefflines of text".encode("utf-16-le"),
    "gzip": gzip.compress(b"x"),
    "bzip2": bz2.compress(b"x" * 99),
    "xz": lzma.compress(b"x"),
    "lz4": b"\x04\x22\x4d\x18" + bytes(99),
    "tar": tar_bytes([("a", b"")]),
    "zip": written(lambda file: np.savez(file, x=[1])),
    "npy": written(lambda file: np.save(file, np.arange(3))),
    "Parquet": written(lambda file: pa.parquet.write_table(_TABLE, file)),
    "Arrow": written(
        lambda file: pa.feather.write_feather(_TABLE, file, compression="uncompressed")
    ),
    "an Arrow file": written(stream),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(99),
    "GGUF": b"GGUF\3\0\0\0" + bytes(99),
    "safetensors": (66).to_bytes(8, "little") + b'{"__metadata__":{"a":"b"},' + b" " * 99,
    "pickle": pickle.dumps({"a": 1}),
    "a pickle": pickle.dumps([1, 2], protocol=2),
    "old Megatron": b"TNTIDX\0\0" + bytes(99),
    "lit-gpt": b"LITPKDS" + bytes(99),
    "LitData": chunk(),
    "LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "HTML": b"\n<!doctype HTML><html>",
    "XML": b'<?xml version="1.0"?><Error>',
    "JSON": b'{"text": "once upon a time there was", "n": 1}',
    "text": "Zażółć gęślą jaźń, once upon a time".encode(),
}
