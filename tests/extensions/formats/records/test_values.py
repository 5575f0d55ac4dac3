"""Stored values: pictures as pixels, lists, arrays, and the bytes that are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardwise.base.columns import BytesColumn
from shardwise.base.errors import DataError
from shardwise.extensions.formats.litdata import serializers
from shardwise.extensions.formats.litdata.tree import parse
from shardwise.extensions.formats.mds import source as encodings
from shardwise.extensions.formats.records.forms import BadRowError, column_of, cut_list, raw_picture
from shardwise.extensions.formats.records.unzip import unzip

MDS = ("str", "json", "str_int", "str_float", "str_decimal", "pil", "jpeg_array", "list[jpeg]",
       "list[pil]", "ndarray", "ndarray:int16")  # fmt: skip
LITDATA = ("str", "numpy", "tensor", "pil", "jpeg_array", "json", "no_header_tensor:1")


def stored_picture(image: Image.Image) -> bytes:
    mode = image.mode.encode()
    return np.array([*image.size, len(mode)], "<u4").tobytes() + mode + image.tobytes()


def stored_list(parts: list[bytes]) -> bytes:
    sizes = [len(part) for part in parts]
    return np.array([len(parts), *sizes], "<u4").tobytes() + b"".join(parts)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_pixels_are_what_pillow_says(mode):
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 200, (3, 5, 3), np.uint8)
    image = Image.fromarray(pixels).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = image.convert("I").convert("I;16")
    found = raw_picture(stored_picture(image))
    assert np.array_equal(found, np.asarray(image))


@pytest.mark.parametrize("kinds", [encodings, serializers])
def test_json_that_is_nested_too_deeply_is_a_bad_row(kinds):
    column = BytesColumn.of([b"[]", b"[" * 200_000])
    with pytest.raises(BadRowError, match=r"200000|recursion") as caught:
        column_of(kinds.form_of("json"), column)
    assert caught.value.row == 1


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_lists_come_back(parts):
    assert cut_list(stored_list(parts)) == parts
    assert cut_list(b"\0\0\0\0" + stored_list(parts), skip=4) == parts


@pytest.mark.parametrize(
    ("kinds", "name"),
    [*((encodings, name) for name in MDS), *((serializers, name) for name in LITDATA)],
)
@given(data=st.binary(max_size=40))
def test_any_bytes_of_a_kind_give_a_value_or_a_meant_error(kinds, name, data):
    decode = kinds.form_of(name).decode
    assert decode is not None
    try:
        decode(data)
    except (ValueError, IndexError, OverflowError):
        return


@pytest.mark.parametrize("name", ["jpeg2000", "ndarray:float8", "ndarray:int8:a", "", "pickle"])
def test_unknown_encodings_are_refused(name):
    with pytest.raises(ValueError, match=r"known|array of|invalid literal"):
        encodings.form_of(name)


def test_encoded_pictures_and_pickles_stay_bytes():
    for name in ("jpeg", "png", "pkl", "bytes"):
        assert not encodings.form_of(name).is_value
    for name in ("jpeg", "image:png", "file:txt", "pickle", "video:mp4", "graph"):
        assert not serializers.form_of(name).is_value


def test_a_tree_that_is_too_deep_or_of_unknown_types_is_refused():
    deep = '{"type": null, "context": null, "children_spec": []}'
    for _ in range(100):
        deep = f'{{"type": "builtins.list", "context": "null", "children_spec": [{deep}]}}'
    for spec, message in (
        (f"[1, {deep}]", "deeper"),
        ('[1, {"type": "my.Type", "context": null, "children_spec": []}]', "my.Type"),
        ('[1, {"type": "builtins.dict", "context": "[1]", "children_spec": []}]', "keys"),
        ("7", "tree"),
    ):
        with pytest.raises(ValueError, match=message):
            parse(spec, 1)


def test_compressed_data_of_another_length_is_refused(monkeypatch):
    pa = pytest.importorskip("pyarrow")
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(b"a" * 1000)
    data = sink.getvalue().to_pybytes()
    assert unzip(data, "zstd:3", None, url="x").tobytes()[:1] == b"a"
    with pytest.raises(DataError, match="bytes become more than 500"):
        monkeypatch.setattr(f"{unzip.__module__}._LEAST_BYTES", 500)
        monkeypatch.setattr(f"{unzip.__module__}._RATIO", 0)
        unzip(data, "zstd:3", None, url="x")
    assert len(unzip(data, "zstd:3", None, url="x", guess=1000)) == 1000
    for length, message in ((999, "more than"), (1001, "only")):
        with pytest.raises(DataError, match=message):
            unzip(data, "zstd", length, url="x")
    for kind in ("lzma", "snappy"):
        with pytest.raises(DataError, match=r"compressed by|damaged"):
            unzip(data, kind, 1000, url="x")
