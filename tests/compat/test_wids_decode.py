"""wids' decoders: by extension, with errors that say where, and no pickle that nobody asked for."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from functools import partial

import msgpack
import numpy as np
import pytest
import torch
from PIL import Image

from shardwise import DataError
from shardwise.compat.wids.wids_decode import (
    check_keys,
    decode_all_gz,
    decode_basic,
    decode_images_to_numpy,
    decode_images_to_pil,
    default_decoder,
)


def image(kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(np.arange(36, dtype=np.uint8).reshape(3, 4, 3)).save(file, kind)
    return file.getvalue()


def saved(save, value):
    file = io.BytesIO()
    save(file, value)
    return file.getvalue()


def streams(**fields):
    return {f".{name}": io.BytesIO(data) for name, data in fields.items()} | {"__key__": "k"}


def test_fields_are_decoded_by_extension():
    array = np.arange(3)
    sample = streams(
        txt="é".encode(),
        cls=b"7",
        json=b'{"a": 1}',
        npy=saved(np.save, array),
        mp=msgpack.packb([1]),
        pth=saved(lambda f, v: torch.save(v, f), torch.arange(2)),
        bin=b"x",
    )
    found = default_decoder(sample)
    assert (found[".txt"], found[".cls"], found[".json"], found[".mp"]) == ("é", 7, {"a": 1}, [1])
    assert found[".npy"].tolist() == [0, 1, 2]
    assert found[".pth"].tolist() == [0, 1]
    assert found[".bin"].read() == b"x"
    assert found["__key__"] == "k"
    # What was given stays as it was.
    assert isinstance(sample[".txt"], io.BytesIO)


def test_bytes_are_as_good_as_streams_and_decoded_values_are_left_alone():
    assert decode_basic({".cls": b"3", ".txt": "text", ".seg.json": b"[]"}) == {
        ".cls": 3,
        ".txt": "text",
        ".seg.json": [],
    }


@pytest.mark.parametrize("name", ["png", "jpg", "jpeg", "webp", "PNG"])
def test_images_become_pil_images_or_arrays(name):
    data = image("JPEG" if name.startswith("jp") else name.upper())
    found = decode_images_to_pil({f".{name}": data})[f".{name}"]
    assert (found.size, found.fp) == ((4, 3), None)
    found = decode_images_to_numpy({f".{name}": io.BytesIO(data)})[f".{name}"]
    assert (found.shape, found.dtype) == ((3, 4, 3), np.uint8)
    found = default_decoder({f".{name}": data}, format="numpy")[f".{name}"]
    assert isinstance(found, np.ndarray)
    assert default_decoder({f".{name}": data}, format=None)[f".{name}"] == data
    assert default_decoder({f".{name}": data})[f".{name}"] == data


def test_gz_is_unpacked_and_its_name_kept_or_not():
    def packed():
        return {".txt.gz": io.BytesIO(gzip.compress(b"hi")), ".gz": b"plain"}

    assert default_decoder(packed()) == {".txt.gz": "hi", ".gz": b"plain"}
    assert default_decoder(packed(), gz_update_key=True) == {".txt": "hi", ".gz": b"plain"}
    assert decode_all_gz(packed())[".txt"].read() == b"hi"


@pytest.mark.parametrize(
    ("field", "data"),
    [
        (".cls", b"seven"),
        (".json", b"{"),
        (".txt", b"\xff"),
        (".npy", b"no"),
        (".npy", saved(partial(np.save, allow_pickle=True), np.array([{}], dtype=object))),
        (".mp", b"\xc1"),
        (".pth", b"no"),
        (".jpg", b"no image"),
        (".jpg", image("JPEG")[:300]),
        (".txt.gz", b"no gzip"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_be_decoded_says_where_it_lies(field, data):
    sample = {field: data, "__key__": "0001", "__shard__": "a.tar"}
    with pytest.raises(DataError) as caught:
        default_decoder(sample, format="PIL")
    error = caught.value
    assert (error.url, error.key, error.field) == ("a.tar", "0001", field)


class Harm:
    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


def test_a_pickle_is_not_loaded_unless_it_is_asked_for():
    for name in (".pkl", ".pickle"):
        with pytest.raises(DataError, match="unpickle=True"):
            default_decoder({name: pickle.dumps(Harm())})
        found = default_decoder({name: pickle.dumps({1: 2})}, unpickle=True)
        assert found == {name: {1: 2}}
    with pytest.raises(DataError):
        default_decoder({".pth": saved(lambda f, v: torch.save(v, f), Harm())})


def test_fields_need_their_dots():
    with pytest.raises(ValueError, match="'jpg'"):
        check_keys({"jpg": b""})
    with pytest.raises(ValueError, match="'tiff'"):
        default_decoder({}, format="tiff")
    assert json.dumps(default_decoder({})) == "{}"
