"""The first rows of a JPEG are those of the whole image, and a cut file is still an error."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from shardwise.codecs import RandomCrop, image
from shardwise.codecs import image_backends as backends
from shardwise.codecs.image_headers import probe
from shardwise.codecs.image_jpeg_rows import may_end_early, read_first_rows
from tests.codecs.samples import encode, picture


def _first_rows(data, mode, num_rows):
    header = probe(memoryview(data))
    shape = (header.height, header.width, backends.CHANNELS[mode])
    return read_first_rows(
        simplejpeg, memoryview(data), mode, shape, num_rows=num_rows, frame_at=header.frame_at
    )


def _may_end_early(data):
    return may_end_early(memoryview(data), probe(memoryview(data)).frame_at)


@pytest.mark.parametrize("colours", ["444", "422", "420", "440", "411", "Gray"])
@pytest.mark.parametrize("mode", ["rgb", "gray", "rgba"])
def test_the_first_rows_are_those_of_the_whole_image(colours, mode):
    height, width = 77, 51
    pixels = picture(height, width)
    if colours == "Gray":
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[..., :1]), colorspace="GRAY")
    else:
        data = simplejpeg.encode_jpeg(pixels, colorsubsampling=colours)
    assert _may_end_early(data)
    whole = simplejpeg.decode_jpeg(data, mode.upper())
    for num_rows in range(1, height - 17):
        rows = _first_rows(data, mode, num_rows)
        assert rows.shape[0] < height
        assert np.array_equal(rows[:num_rows], whole[:num_rows])
    assert _first_rows(data, mode, height - 4) is None


@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"restart_marker_blocks": 2}, {"mode": "CMYK"}]
)
def test_other_kinds_are_decoded_whole(options):
    file = io.BytesIO()
    mode = options.pop("mode", "RGB")
    Image.fromarray(picture(90, 120)).convert(mode).save(file, "JPEG", **options)
    data = file.getvalue()
    assert not _may_end_early(data)
    whole = image(layout="HWC")(data)
    decoder = image(size=40, crop="random", layout="HWC", interpolation="nearest")
    for seed in range(4):
        box = RandomCrop().draw(np.random.default_rng(seed), 90, 120)
        png = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(box.cut(whole))).save(png, "PNG")
        expected = image(size=40, layout="HWC", interpolation="nearest")(png.getvalue())
        expected = expected[:, ::-1] if box.is_mirrored else expected
        assert np.array_equal(decoder(data, np.random.default_rng(seed)), expected)


def test_a_restart_interval_before_the_frame_header_is_seen():
    file = io.BytesIO()
    Image.fromarray(picture(90, 120)).save(file, "JPEG", restart_marker_blocks=2)
    data = file.getvalue()
    at, frame = data.index(b"\xff\xdd"), data.index(b"\xff\xc0")
    moved = data[:frame] + data[at : at + 6] + data[frame:at] + data[at + 6 :]
    assert np.array_equal(simplejpeg.decode_jpeg(moved), simplejpeg.decode_jpeg(data))
    assert not _may_end_early(moved)


def test_restart_markers_after_the_rows_mean_the_whole_image():
    file = io.BytesIO()
    Image.fromarray(picture(90, 120)).save(file, "JPEG", restart_marker_blocks=2)
    assert _first_rows(file.getvalue(), "rgb", 30) is None


def test_a_cut_file_is_an_error_wherever_it_is_cut():
    data = encode(picture(200, 200), "JPEG", quality=90)
    decoder = image(size=16, crop="random", scale=(0.08, 0.1))
    # Its part ends in the first half of the image.
    seed = next(
        seed
        for seed in range(100)
        if RandomCrop((0.08, 0.1)).draw(np.random.default_rng(seed), 200, 200).top < 30
    )
    decoder(data, np.random.default_rng(seed))
    for kept in (*range(0, len(data), 97), len(data) - 2, len(data) - 1):
        with pytest.raises(ValueError, match=r"jpeg|image"):
            decoder(data[:kept], np.random.default_rng(seed))


def test_damage_in_the_rows_is_seen():
    data = encode(picture(200, 200), "JPEG", quality=90)
    scan = data.index(b"\xff\xda") + 14
    damaged = data[: scan + 100] + b"\xff\xd9" + data[scan + 102 :]
    assert _first_rows(data, "rgb", 100) is not None
    assert _first_rows(damaged, "rgb", 100) is None
    with pytest.raises(ValueError, match="jpeg"):
        image(size=16, crop="random")(damaged, np.random.default_rng(0))
