"""Packed files: which go to a device, and what a row of them holds."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from shardwise.codecs import image
from shardwise.extensions.device_images.packing import (
    PackedImages,
    PackingImage,
    decode_packed_into,
)
from tests.codecs.samples import encode, oriented, picture


def packed(*files, **options):
    decoder = PackingImage(image(**{"size": 20, "decode_on": "device", **options}))
    return decoder.pack_column([decoder(data, np.random.default_rng(3)) for data in files])


def is_pixels(data, **options):
    return bool(packed(data, **options).rows["is_pixels"][0])


@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"subsampling": 2}, {"progressive": True}]
)
def test_jpeg_files_in_colour_and_gray_go_to_the_device(options):
    assert not is_pixels(encode(picture(), "JPEG", **options))
    assert not is_pixels(encode(picture()[..., 0], "JPEG"))


def test_what_nvjpeg_decodes_in_another_way_stays_here():
    colour = Image.fromarray(picture())
    assert is_pixels(encode(colour, "PNG"))
    assert is_pixels(encode(colour.convert("CMYK"), "JPEG"))
    assert is_pixels(encode(colour, "JPEG", keep_rgb=True))
    turned = oriented("JPEG", 6, picture())
    assert is_pixels(turned, orient=True)
    assert is_pixels(turned), "torchcodec would turn it"
    assert not is_pixels(oriented("JPEG", 1, picture()))


def test_a_row_has_the_part_that_the_generator_draws():
    data = encode(picture(), "JPEG")
    options = {"crop": "random", "flip": 1.0}
    part = image(size=20, **options).draw(memoryview(data), np.random.default_rng(3))
    row = packed(data, **options).rows[0]
    box = [int(row[name]) for name in ("top", "left", "box_height", "box_width")]
    assert box == [part.box.top, part.box.left, part.box.height, part.box.width]
    assert row["is_mirrored"]


def test_one_file_of_a_column_is_decoded_as_ever():
    files = [encode(picture(60 + i, 80), "JPEG") for i in range(3)]
    decoder = image(size=20, fit="crop", decode_on="device")
    column = packed(*files, fit="crop")
    out = np.empty(*decoder.row)
    decode_packed_into(decoder, column[1], out)
    assert np.array_equal(out, decoder(files[1]))


def test_a_column_is_a_sequence_of_its_files():
    files = [encode(picture(60 + i, 80), "JPEG") for i in range(3)]
    column = packed(*files)
    assert [each.payload().tobytes() for each in column] == files
    assert [each.payload().tobytes() for each in column[1:]] == files[1:]
    assert column[-1].payload().tobytes() == files[-1]
    assert column.nbytes == sum(map(len, files))
    assert isinstance(column[0], PackedImages)
    with pytest.raises(IndexError):
        column[3]


@pytest.mark.parametrize("options", [{}, {"crop": "random"}])
def test_damage_in_a_header_is_raised_here(options):
    with pytest.raises(ValueError, match="begin with b'no image'"):
        packed(b"no image", **options)
    with pytest.raises(ValueError, match="could not decode the jpeg"):
        packed(encode(picture(), "JPEG")[:-400], **options)
