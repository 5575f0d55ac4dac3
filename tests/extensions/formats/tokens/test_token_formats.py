"""Headers of token files: what they say is what is read, and damage is told."""

from __future__ import annotations

import io
import json
import struct

import numpy as np
import pytest

import shardwise as sw
from tests.support.token_files import documents_of, write_litdata, write_megatron

SIZES = [30, 1, 12, 50, 7]
TOKENS = np.concatenate(documents_of(SIZES))


def tokens_of(urls, **options):
    ds = sw.tokens(urls, block=1, **options)
    return [*(int(s["tokens"][0]) for s in ds), int(ds[-1]["tokens"][1])]


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
@pytest.mark.parametrize("sentences", [1, 3])
def test_megatron(tmp_path, dtype, sentences):
    path = write_megatron(tmp_path / "a.bin", documents_of(SIZES, dtype), sentences=sentences)
    assert tokens_of(path) == TOKENS.tolist()
    assert sw.tokens(path, block=4)[0]["tokens"].dtype == dtype
    ds = sw.tokens(path, block=4, documents=True)
    assert ds.source._ends.size == len(SIZES)


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("no_header_tensor:16", "int32"), ("no_header_tensor:20", "uint16"),
     ("no_header_numpy:5", "uint16"), ("no_header_tensor:17", "int64")],
)  # fmt: skip
def test_litdata(tmp_path, form, dtype):
    documents = documents_of(SIZES, dtype)
    folder = write_litdata(tmp_path / "lit", [documents[:2], documents[2:]], form)
    for name in (folder, folder / "index.json"):
        ds = sw.tokens(name, block=1)
        assert ds[0]["tokens"].dtype == dtype
        assert ds.shard_sizes.tolist() == [sum(SIZES[:2]) - 1, sum(SIZES[2:]) - 1]
    assert sw.tokens(folder, block=4, documents=True).source._ends.size == len(SIZES)


def test_raw_npy_and_llmc(tmp_path):
    TOKENS.tofile(tmp_path / "raw.bin")
    TOKENS.tofile(tmp_path / "olmo.npy")
    np.save(tmp_path / "real.npy", TOKENS)
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(TOKENS)
    (tmp_path / "llmc.bin").write_bytes(header.tobytes() + TOKENS.tobytes())
    assert tokens_of(tmp_path / "raw.bin", dtype="uint16") == TOKENS.tolist()
    assert tokens_of(tmp_path / "olmo.npy", dtype=np.uint16) == TOKENS.tolist()
    assert tokens_of(tmp_path / "real.npy") == TOKENS.tolist()
    assert tokens_of(tmp_path / "llmc.bin") == TOKENS.tolist()


def idx(tmp_path, change):
    path = write_megatron(tmp_path / "a.bin", documents_of(SIZES))
    index = path.with_suffix(".idx")
    data = bytearray(index.read_bytes())
    changed = change(data)
    index.write_bytes(bytes(data if changed is None else changed))
    return path


def put(offset, form, value):
    return lambda data: struct.pack_into(form, data, offset, value)


SIZE_AT, PLACE_AT, BOUND_AT = 34, 34 + 4 * 5, 34 + 12 * 5


@pytest.mark.parametrize(
    ("change", "message", "offset"),
    [
        (lambda d: b"", "does not begin with MMIDIDX", 0),
        (lambda d: b"XX" + d[2:], "does not begin with MMIDIDX", 0),
        (lambda d: d[:20], "a header has 34", 20),
        (put(9, "<Q", 2), "version 2", 9),
        (put(17, "<B", 7), "floats", 17),
        (put(17, "<B", 99), "unknown", 17),
        (lambda d: d[:-1], "it is cut or damaged", 34 + 12 * 5 + 8 * 6 - 1),
        (put(18, "<Q", 2**60), "it is cut or damaged", 34 + 12 * 5 + 8 * 6),
        (put(PLACE_AT + 32, "<q", 4), "belongs to another one", 18),
        (put(SIZE_AT, "<i", -5), "the index is damaged", PLACE_AT),
        (put(PLACE_AT + 8, "<q", 6), "the index is damaged", PLACE_AT + 8),
        (put(BOUND_AT + 16, "<q", 9), "do not ascend", BOUND_AT + 24),
        (put(BOUND_AT, "<q", 1), "do not ascend", BOUND_AT),
    ],
)
def test_a_damaged_index_of_megatron_says_where(tmp_path, change, message, offset):
    path = idx(tmp_path, change)
    with pytest.raises(sw.DataError, match=message) as raised:
        len(sw.tokens(path, block=4, documents=True))
    assert raised.value.url.startswith(str(tmp_path / "a."))
    assert raised.value.offset == offset


def test_a_cut_bin_is_held_against_its_index(tmp_path):
    path = write_megatron(tmp_path / "a.bin", documents_of(SIZES))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(sw.DataError, match="200 bytes of tokens, and there are 197") as raised:
        len(sw.tokens(path, block=4))
    assert (raised.value.url, raised.value.offset) == (str(path), 197)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: None, "no index of LitData"),
        (lambda i: {"chunks": i["chunks"]}, "no index of LitData.*sw.mds"),
        (lambda i: i | {"config": i["config"] | {"data_format": ["jpeg"]}}, "TokensLoader"),
        (lambda i: i | {"config": i["config"] | {"data_format": None}}, "TokensLoader"),
        (lambda i: i | {"config": i["config"] | {"compression": "zstd"}}, "zstd"),
        (lambda i: i | {"chunks": [{"filename": "../a"}]}, "does not lie beside the index"),
        (lambda i: i | {"chunks": [{"filename": "\ud800"}]}, "lone surrogate"),
        (lambda i: i | {"chunks": i["chunks"] * 2}, "twice"),
        (lambda i: i | {"chunks": []}, "no chunk"),
        (lambda i: i | {"chunks": [{"filename": "gone.bin"}]}, "no such file"),
    ],
)
def test_a_damaged_index_of_litdata_is_told(tmp_path, change, message):
    folder = write_litdata(tmp_path / "lit", [documents_of(SIZES)], "no_header_tensor:20")
    index = folder / "index.json"
    index.write_text(json.dumps(change(json.loads(index.read_text()))))
    with pytest.raises(sw.DataError, match=message):
        len(sw.tokens(folder, block=4))


@pytest.mark.parametrize(
    ("change", "message", "offset"),
    [
        (lambda d: d[:5], "is cut", 5),
        (lambda d: d[:-2], "is cut", 226),
        (lambda d: b"\1" + d[1:], "begin at byte", 4),
        (lambda d: d[:8] + struct.pack("<I", 2**31) + d[12:], "item 1", 8),
    ],
)
def test_a_damaged_chunk_of_litdata_says_where(tmp_path, change, message, offset):
    folder = write_litdata(tmp_path / "lit", [documents_of(SIZES)], "no_header_tensor:20")
    chunk = folder / "chunk-0-0.bin"
    chunk.write_bytes(change(chunk.read_bytes()))
    with pytest.raises(sw.DataError, match=message) as raised:
        len(sw.tokens(folder, block=4, documents=True))
    assert (raised.value.url, raised.value.offset) == (str(chunk), offset)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.bin", TOKENS.tobytes(), {}, "give dtype='uint16'"),
        ("a.bin", TOKENS.tobytes()[:-1], {"dtype": "uint16"}, "the file is cut"),
        ("a.bin", npy(TOKENS), {"dtype": "uint16"}, "no file of raw tokens, but a .npy"),
        (
            "a.bin",
            b"\x1f\x8b\x08" + bytes(200),
            {"dtype": "uint16"},
            "raw tokens, but gzip: unpack",
        ),
        ("a.bin", b"", {"dtype": "uint16"}, r"no block of 4 \+ 1 tokens"),
        ("a.bin", np.array([20240520, 1, 5] + [0] * 256, "<i4").tobytes(), {}, "says 5 tokens"),
        ("a.npy", TOKENS.tobytes(), {}, "NUMPY"),
        ("a.npy", npy(TOKENS[None]), {}, "one row of whole numbers"),
        ("a.npy", npy(TOKENS.astype(float)), {}, "one row of whole numbers"),
        ("a.npy", npy(TOKENS.astype(">i4")), {}, "little-endian"),
        ("a.npy", npy(np.array([{}, None])), {}, "one row of whole numbers"),
        ("a.npy", b"\x93NUMPY\1\0\x10\0" + b"{" * 16, {}, "damaged header"),
        ("a.npy", b"\x93NUMPY", {}, "damaged header"),
        ("a.npy", npy(TOKENS)[:-2], {}, "cut or damaged"),
        ("a.npy", npy(TOKENS), {"dtype": "int32"}, "the header says uint16"),
        ("a.txt", b"x", {}, "no file of tokens by its name"),
        ("a.idx", b"x", {}, "the .bin beside the .idx"),
    ],
)
def test_a_foreign_damaged_or_unknown_file_is_told(tmp_path, name, data, options, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(sw.DataError, match=message) as raised:
        len(sw.tokens(path, block=4, **options))
    assert raised.value.url == str(path)


def test_a_prefix_of_megatron_names_its_file_of_tokens(tmp_path):
    write_megatron(tmp_path / "a.bin", documents_of(SIZES))
    with pytest.raises(sw.MissingShardError, match=r"name its tokens, '.*a\.bin'"):
        len(sw.tokens(tmp_path / "a", block=4))
    with pytest.raises(sw.MissingShardError, match=r"no such file \("):
        len(sw.tokens(tmp_path / "b", block=4))


def test_two_dtypes_and_formats_without_documents_are_refused(tmp_path):
    write_megatron(tmp_path / "a.bin", documents_of(SIZES))
    write_megatron(tmp_path / "b.bin", documents_of(SIZES, "int32"))
    with pytest.raises(sw.DataError, match=r"int32, and those of .* uint16"):
        len(sw.tokens([tmp_path / "a.bin", tmp_path / "b.bin"], block=4))
    TOKENS.tofile(tmp_path / "c.bin")
    with pytest.raises(sw.DataError, match="does not say where documents end"):
        len(sw.tokens(tmp_path / "c.bin", block=4, dtype="uint16", documents=True))
    with pytest.raises(sw.DataError, match="index says uint16"):
        len(sw.tokens(tmp_path / "a.bin", dtype="int32"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"block": 0}, ValueError),
        ({"block": "x"}, TypeError),
        ({"dtype": "float32"}, TypeError),
        ({"dtype": "nope"}, TypeError),
        ({"documents": "yes"}, TypeError),
        ({"urls": []}, ValueError),
        ({"urls": 3}, TypeError),
        ({"urls": "gone-*.bin"}, sw.MissingShardError),
    ],
)
def test_a_bad_argument_is_refused(tmp_path, options, error):
    write_megatron(tmp_path / "a.bin", documents_of(SIZES))
    with pytest.raises(error):
        sw.tokens(**({"urls": tmp_path / "a.bin"} | options))


def test_an_index_that_is_replaced_before_its_documents_are_read_is_told(tmp_path):
    path = write_megatron(tmp_path / "a.bin", documents_of(SIZES))
    ds = sw.tokens(path, block=4, documents=True)
    assert ds.source.files
    index = bytearray(path.with_suffix(".idx").read_bytes())
    struct.pack_into("<i", index, 34 + 4 * (len(SIZES) - 1), 70)
    path.with_suffix(".idx").write_bytes(index)
    with pytest.raises(sw.DataError, match="was replaced") as caught:
        len(ds)
    assert caught.value.url == str(path)
