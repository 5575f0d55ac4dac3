"""Files are called by the format that they begin with; tokens are not taken for one."""

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
import pytest

import shardwise as sw
from shardwise.storage.known_formats import known_format
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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("options", [{}, {"dtype": "uint16"}])
def test_a_token_file_of_another_format_is_refused_by_name(tmp_path, name, options):
    path = tmp_path / "a.bin"
    path.write_bytes(FILES[name] + bytes(len(FILES[name]) % 2 * (name not in ("text", "JSON"))))
    with pytest.raises(sw.DataError, match=name) as caught:
        len(sw.tokens(str(path), block=2, **options))
    assert "dtype=" not in caught.value.reason


def test_text_is_tokens_of_one_byte_for_who_says_so(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(FILES["text"])
    assert sw.tokens(str(path), block=2, dtype="uint8")[0]["tokens"].tolist() == [90, 97, 197]


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4"])
def test_random_tokens_are_of_no_known_format(dtype):
    rng = np.random.default_rng(0)
    for vocabulary in (256, 50257, 128256):
        top = min(vocabulary, np.iinfo(dtype).max)
        for _ in range(300):
            tokens = rng.integers(top, size=4096).astype(dtype).tobytes()
            assert known_format(tokens[:1024], num_bytes=len(tokens)) is None


@pytest.mark.parametrize("dtype", [">u2", ">i4", ">u4", ">i8", np.dtype(">u2")])
def test_big_endian_tokens_are_refused(dtype):
    with pytest.raises(TypeError, match="little-endian; swap the bytes once"):
        sw.tokens("a.bin", block=3, dtype=dtype)


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, "<u2"), (20240801, "<u4")])
@pytest.mark.parametrize("version", [1, 7])
def test_llmc_files_of_both_magics_and_versions_are_read(tmp_path, magic, dtype, version):
    path, header = tmp_path / "a.bin", np.zeros(256, "<i4")
    header[:3] = magic, version, 100
    path.write_bytes(header.tobytes() + np.arange(100, dtype=dtype).tobytes())
    assert sw.tokens(str(path), block=3)[0]["tokens"].tolist() == [0, 1, 2, 3]
    header[1] = 9
    path.write_bytes(header.tobytes() + np.arange(100, dtype=dtype).tobytes())
    with pytest.raises(sw.DataError, match=r"llm.c of version 9"):
        len(sw.tokens(str(path), block=3, dtype="uint16"))
