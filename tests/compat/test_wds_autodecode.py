"""Fields to values: who decodes what, and what an error says."""

from __future__ import annotations

import io
import pickle

import numpy as np
import PIL.Image
import PIL.ImageFilter
import pytest
import torch

from shardwise.compat import webdataset
from shardwise.compat.webdataset import autodecode
from shardwise.compat.webdataset.autodecode import (
    Continue,
    Decoder,
    DecodingError,
    ImageHandler,
    handle_extension,
    imagehandler,
    imagespecs,
)


def encoded(mode="RGB", kind="PNG", size=(31, 23), **options):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = PIL.Image.fromarray(pixels).filter(PIL.ImageFilter.GaussianBlur(1)).convert(mode)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pillow(data, mode):
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert(mode))


# Images.


@pytest.mark.parametrize("extension", ["h5", "hdf", "mpg", "mpeg", "fits", "fit", "grib", "bufr"])
def test_an_image_decoder_leaves_alone_what_is_no_image(extension):
    sample = {"__key__": "a", extension: b"data", "png": encoded()}
    decoded = Decoder([ImageHandler("rgb")])(sample)
    assert decoded[extension] == b"data"
    assert decoded["png"].shape == (23, 31, 3)


def test_other_extensions_are_decoded_on_request():
    assert ImageHandler("rgb", extensions=["h5"])(".h5", encoded()).shape == (23, 31, 3)
    assert ImageHandler("rgb")(".seg.PNG", encoded()).shape == (23, 31, 3)


@pytest.mark.parametrize("spec", imagespecs)
def test_each_spec_gives_its_kind_of_image(spec):
    data = encoded("RGBA")
    kind, elements, colours = imagespecs[spec]
    got = imagehandler(spec)(".png", data)
    wanted = pillow(data, colours.upper())
    if kind == "pil":
        assert got.mode == colours.upper()
        got = np.asarray(got)
    elif kind == "torch":
        assert isinstance(got, torch.Tensor)
        got = (got if got.ndim == 2 else got.permute(1, 2, 0)).numpy()
    assert got.shape == wanted.shape
    if elements == "float":
        assert got.dtype == np.float32
        assert (got == wanted.astype(np.float32) / 255.0).all()
    else:
        assert got.dtype == np.uint8
        assert (got == wanted).all()


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 20}]
)
@pytest.mark.parametrize("size", [(31, 23), (1, 1), (300, 200)])
def test_a_jpeg_has_the_pixels_that_pillow_gives(mode, options, size):
    data = encoded(mode, "JPEG", size, **options)
    for spec in ("rgb8", "l8", "rgba8"):
        got = ImageHandler(spec)(".jpg", data)
        assert (got == pillow(data, imagespecs[spec][2].upper())).all()


@pytest.mark.parametrize("spec", ["rgb", "l8", "pil", "torch"])
def test_a_cut_image_is_an_error(spec):
    for kind in ("JPEG", "PNG"):
        with pytest.raises((OSError, ValueError)):
            ImageHandler(spec)(".img.jpg", encoded(kind=kind)[:200])


def test_an_unknown_spec_is_named():
    with pytest.raises(ValueError, match=r"pilrgb8.*pilrgba"):
        ImageHandler("pilrgb8")


# The decoder.


def test_an_error_names_field_key_url_and_cause():
    sample = {"__key__": "0007", "__url__": "s3://b/000.tar", "cls": b"3", "json": b"{"}
    with pytest.raises(DecodingError) as caught:
        Decoder([])(sample)
    text = str(caught.value)
    for part in ("'json'", "'0007'", "s3://b/000.tar", "JSONDecodeError"):
        assert part in text
        assert part in repr(caught.value)
    error = caught.value
    assert (error.url, error.key, error.k, error.sample) == (
        "s3://b/000.tar", "0007", "json", sample,
    )  # fmt: skip
    again = pickle.loads(pickle.dumps(error))
    assert "0007" in str(again)
    assert again.sample == sample


def test_an_error_keeps_its_text_on_the_way_out_of_a_worker():
    # torch makes it again from its text alone.
    assert str(DecodingError("Caught DecodingError in worker 0")).startswith("Caught")
    assert str(DecodingError())


def test_the_last_part_of_a_name_says_how_a_field_is_decoded():
    # What each extension means: test_numbers_texts_and_arrays_come_back_through_the_decoders.
    sample = {"__key__": b"a", "__bytes__": b"\xff", "a.cls": b" 3\n", "bin": b"\0"}
    assert Decoder([])(sample) == sample | {"__key__": "a", "a.cls": 3}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_text_may_lie_in_any_buffer(kind):
    assert autodecode.basichandlers("txt", kind("Tür".encode())) == "Tür"


def test_pickled_elements_of_arrays_are_refused():
    for save, name in ((np.save, "npy"), (np.savez, "npz")):
        file = io.BytesIO()
        save(file, np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(DecodingError, match="allow_pickle"):
            Decoder([])({"__key__": "a", name: file.getvalue()})


def test_only_some_fields_and_only_bytes_are_decoded():
    sample = {"__key__": "a", "cls": b"1", "txt": b"2"}
    assert Decoder([], only="cls x")(sample)["txt"] == b"2"
    assert Decoder([], only=["txt"])(sample)["cls"] == b"1"
    with pytest.raises(DecodingError, match="partial=True"):
        Decoder([])({"__key__": "a", "cls": 1})
    assert Decoder([], partial=True)({"__key__": "a", "cls": 1, "txt": b"2"})["cls"] == 1


def test_the_first_decoder_that_answers_wins_and_may_hand_on():
    def first(key, data):
        return Continue(".txt", data + b"!") if key == ".odd" else None

    def second(key, data):
        return "second" if key == ".cls" else None

    sample = {"odd": b"a", "cls": b"1", "inx": b"2"}
    assert Decoder([first, second])(sample) == {"odd": "a!", "cls": "second", "inx": 2}
    assert Decoder([], pre=[second], post=[])(sample)["inx"] == b"2"
    with pytest.raises(TypeError, match="handlers"):
        Decoder(["rgb"])
    with pytest.raises(TypeError, match="dicts"):
        Decoder([])(("a", 1))


def test_an_extension_may_have_dots_and_capitals():
    decode = handle_extension("SEG.png jpg", len)
    assert decode(".seg.png", b"abc") == 3
    assert decode(".x.Seg.PNG", b"abc") == 3
    assert decode(".jpg", b"ab") == 2
    assert decode(".png", b"abc") is None
    assert pickle.loads(pickle.dumps(decode))(".jpg", b"ab") == 2


# What can run code.


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("it ran",))


@pytest.mark.parametrize("module", [autodecode, webdataset])
def test_torch_files_may_be_held_to_tensors(monkeypatch, module):
    file = io.BytesIO()
    torch.save(Harmful(), file)
    monkeypatch.setattr(module, "pytorch_weights_only", True)
    with pytest.raises(DecodingError, match="Weights only"):
        Decoder([])({"__key__": "a", "pth": file.getvalue()})
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file)
    assert Decoder([])({"pth": file.getvalue()})["pth"]["w"].tolist() == [1, 1]


def test_torch_files_may_hold_anything_unless_told_otherwise():
    file = io.BytesIO()
    torch.save({"when": slice(3)}, file)
    assert autodecode.torch_loads(file.getvalue())["when"] == slice(3)
