"""A part of a JPEG has the pixels of the whole image, and a cut file is still an error."""

from __future__ import annotations

import importlib.metadata
import io
import platform
import sys

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardwise.codecs import RandomCrop, image, image_jpeg_parts
from shardwise.codecs.image_crop import CropBox
from shardwise.codecs.image_headers import probe
from shardwise.codecs.image_jpeg_parts import may_end_early, read_part
from shardwise.codecs.image_turbojpeg import find_turbojpeg
from tests.codecs.samples import encode, picture

_HEIGHT, _WIDTH = 77, 83
_CMYK = {"quality": 90}
_COLOURS = ["444", "422", "420", "440", "411", "Gray"]
_has_turbojpeg = pytest.mark.skipif(find_turbojpeg() is None, reason="no TurboJPEG 3 here")


@pytest.fixture(params=[pytest.param("turbojpeg", marks=_has_turbojpeg), "simplejpeg"])
def by(request, monkeypatch):
    """Which package decodes parts."""
    if request.param == "simplejpeg":
        monkeypatch.setattr(image_jpeg_parts, "find_turbojpeg", lambda: None)
    return request.param


def _part(data, box, mode="rgb"):
    return read_part(memoryview(data), probe(memoryview(data)), CropBox(*box), mode=mode)


def _may_end_early(data):
    return may_end_early(memoryview(data), probe(memoryview(data)).frame_at)


def _encode(colours, height=_HEIGHT, width=_WIDTH):
    pixels = picture(height, width)
    if colours == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[..., :1]), colorspace="GRAY")
    return simplejpeg.encode_jpeg(pixels, colorsubsampling=colours)


def test_turbojpeg_is_there_where_its_package_is():
    try:
        importlib.metadata.version("turbojpeg")
    except importlib.metadata.PackageNotFoundError:
        assert (
            sys.version_info >= (3, 14)
            or sys.platform != "linux"
            or platform.machine() != "x86_64"  # as in the extra
        )
    else:
        assert find_turbojpeg() is not None


@pytest.mark.parametrize("colours", _COLOURS)
@pytest.mark.parametrize("mode", ["rgb", "gray", "rgba"])
def test_a_part_has_the_pixels_of_the_whole_image(colours, mode, by):
    data = _encode(colours)
    assert _may_end_early(data)
    whole = simplejpeg.decode_jpeg(data, mode.upper())
    rows = [(0, 1), (0, 60), (1, 1), (7, 9), (8, 8), (15, 30), (16, 16), (17, 31), (33, 20)]
    columns = [(0, 1), (0, _WIDTH), (1, 5), (8, 8), (15, 20), (16, 40), (33, 50), (82, 1)]
    for top, height in rows:
        for left, width in columns:
            box = (top, left, height, width)
            part = _part(data, box, mode)
            if part is None:
                assert by == "simplejpeg" or width <= 5
            else:
                assert np.array_equal(part, CropBox(*box).cut(whole)), box


@_has_turbojpeg
@given(st.data(), st.sampled_from(_COLOURS), st.integers(1, 70), st.integers(1, 70))
def test_any_part_of_any_image_has_its_pixels(draws, colours, height, width):
    top, left = draws.draw(st.integers(0, height - 1)), draws.draw(st.integers(0, width - 1))
    rows, columns = (
        draws.draw(st.integers(1, height - top)),
        draws.draw(st.integers(1, width - left)),
    )
    data = _encode(colours, height, width)
    part = _part(data, (top, left, rows, columns))
    if part is None:
        assert columns < 5
    else:
        whole = simplejpeg.decode_jpeg(data, "RGB")
        assert np.array_equal(part, CropBox(top, left, rows, columns).cut(whole))


def test_the_rest_is_not_decoded(by):
    data = bytearray(encode(picture(200, 200), "JPEG", quality=90))
    at = 3 * len(data) // 4
    data[at : at + 2] = b"\xff\xd9"
    with pytest.raises(ValueError, match="jpeg"):
        image()(bytes(data))
    part = _part(data, (0, 8, 60, 70))
    assert np.array_equal(
        part, _part(encode(picture(200, 200), "JPEG", quality=90), (0, 8, 60, 70))
    )


def test_with_few_rows_to_leave_out_simplejpeg_decodes_all(monkeypatch):
    monkeypatch.setattr(image_jpeg_parts, "find_turbojpeg", lambda: None)
    assert _part(_encode("420"), (0, 0, _HEIGHT - 17, 8)) is not None
    assert _part(_encode("420"), (0, 0, _HEIGHT - 16, 8)) is None


def test_a_jpeg_of_odd_subsampling_is_decoded_whole():
    """The first component is stored at half the resolution of the second."""
    data = bytearray(_encode("444"))
    frame_at = probe(memoryview(data)).frame_at
    data[frame_at + 10] = 0x22
    assert _part(data, (0, 0, 8, 8)) is None


@pytest.mark.parametrize("options", [{"progressive": True}, {"restart_marker_blocks": 2}, _CMYK])
def test_other_kinds_are_decoded_whole(options, by):
    file = io.BytesIO()
    pixels = Image.fromarray(picture(90, 120)).convert("CMYK" if options is _CMYK else "RGB")
    pixels.save(file, "JPEG", **options)
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


def test_restart_markers_after_the_rows_mean_the_whole_image(by):
    file = io.BytesIO()
    Image.fromarray(picture(90, 120)).save(file, "JPEG", restart_marker_blocks=2)
    assert _part(file.getvalue(), (0, 0, 30, 30)) is None


def test_a_cut_file_is_an_error_wherever_it_is_cut(by):
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


def test_damage_in_the_rows_is_seen(by):
    data = encode(picture(200, 200), "JPEG", quality=90)
    scan = data.index(b"\xff\xda") + 14
    damaged = data[: scan + 100] + b"\xff\xd9" + data[scan + 102 :]
    assert _part(data, (50, 50, 50, 50)) is not None
    assert _part(damaged, (50, 50, 50, 50)) is None
    assert _part(data[: scan - 50], (50, 50, 50, 50)) is None
    assert _part(data, (50, 50, 50, 50)) is not None  # nothing is left of the errors before
    with pytest.raises(ValueError, match="jpeg"):
        image(size=16, crop="random")(damaged, np.random.default_rng(0))
