"""Which decoder a field gets."""

from __future__ import annotations

import pytest

from shardwise import codecs
from shardwise.codecs import default_decoder, resolve

FAMILIES = [
    (codecs.image(), ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "seg.png", "JPG"]),
    (codecs.text(), ["txt", "text", "transcript"]),
    (codecs.integer(), ["cls", "cls2", "index", "inx", "id", "count"]),
    (codecs.json(), ["json", "jsn"]),
    (codecs.msgpack(), ["msgpack", "mp", "msg"]),
    (codecs.torch_tensor(), ["pt", "pth"]),
    (codecs.npy(), ["npy", "left.depth.npy"]),
    (None, ["pkl", "pickle", "pyd", "a.pkl", "bin", "mp4", "mpg", "h5", "flac", "png.bin", ""]),
]


@pytest.mark.parametrize(
    ("field", "decoder"), [(field, decoder) for decoder, fields in FAMILIES for field in fields]
)
def test_the_last_extension_chooses_the_decoder(field, decoder):
    assert default_decoder(field) == decoder
    if decoder is None:
        with pytest.raises(ValueError, match="default"):
            resolve("auto", field)
    else:
        assert resolve("auto", field) == resolve(True, field) == decoder


def test_types_stand_for_their_decoders():
    assert resolve(int, "x")(b"3") == 3
    assert resolve(float, "x")(b"3") == 3.0
    assert resolve(str, "x")(b"3") == "3"
    assert resolve(bytes, "x")(memoryview(b"3")) == b"3"


def test_any_callable_is_taken_as_it_is():
    decoder = codecs.array("u1", 3)
    assert resolve(decoder, "x") is decoder
    assert resolve(len, "x") is len
    assert resolve(bool, "x") is bool


@pytest.mark.parametrize("spec", [None, False, 3, "rgb", "int", b"auto", ["auto"]])
def test_all_else_is_no_decoder(spec):
    with pytest.raises(TypeError, match="no decoder"):
        resolve(spec, "jpg")


def test_pickles_are_decoded_by_name_only():
    with pytest.raises(ValueError, match=r"any code.*sw\.unpickle"):
        resolve("auto", "a.pkl")
