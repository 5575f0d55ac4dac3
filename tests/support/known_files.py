"""Starts of files of the formats that the library calls by name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from tests.support.tars import tar_bytes
from tests.support.tfrecords import record_file

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


def old_tar() -> bytes:
    """A tar of before 1988, without a magic."""
    block = bytearray(512)
    block[:5], block[124:136] = b"a.txt", b"00000000000\0"
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * ord(" "))
    return bytes(block) + bytes(1024)


FILES = {
    "sound, video or WebP": b"fLaC" + bytes(40),
    "a RecordIO file of MXNet": b"\n#\xd7\xce" + bytes(40),
    "text in UTF-16": "\ufefflines of text".encode("utf-16-le"),
    "gzip": gzip.compress(b"x"),
    "bzip2": bz2.compress(b"x" * 99),
    "xz": lzma.compress(b"x"),
    "lz4": b"\x04\x22\x4d\x18" + bytes(99),
    "tar": tar_bytes([("a", b"")]),
    "tar archive": old_tar(),
    "TFRecord": record_file([bytes(99)]),
    "ArrayRecord": b"\x83\xaf\x70\xd1\r\x88J\x3f" + bytes(56),
    "FFCV": struct.pack("<HHIQQ", 2, 2, 8 << 20, 1000, 8 << 20),
    "an archive": b"!<arch>\n" + bytes(99),
    "MATLAB": b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM",
    "or MATLAB": bytes(512) + b"\x89HDF\r\n\x1a\n",
    "weights": b"tjgg" + bytes(99),
    "model weights": (40).to_bytes(8, "little") + b'{"a/w-1":{}}',
    "an image": b"BM" + struct.pack("<IHHI", 99, 0, 0, 54) + bytes(85),
    "sound": b"FORM\0\0\1\0AIFF" + bytes(99),
    "program": b"MZ\x90\0" + bytes(99),
    "git-annex": b"/annex/objects/SHA256E-s1--0\n",
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
    " pickle": pickle.dumps((1, 2), protocol=3),
    "old Megatron": b"TNTIDX\0\0" + bytes(99),
    "lit-gpt": b"LITPKDS" + bytes(99),
    "LitData": chunk(),
    "LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "HTML": b"\n<!doctype HTML><html>",
    "XML": b'<?xml version="1.0"?><Error>',
    "JSON": b'{"text": "once upon a time there was", "n": 1}',
    "tex": "schöne Grüße aus Köln, und mehr davon\n".encode("latin-1") * 4,
    "te": b"404: Not Found\r\n",
    "text": "Zażółć gęślą jaźń, once upon a time".encode(),
}
