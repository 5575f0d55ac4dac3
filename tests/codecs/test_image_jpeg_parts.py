"""A part of a JPEG has the pixels of the whole image, and a cut file is still an error."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import numpy as np
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from shardwise.codecs import RandomCrop, image, image_jpeg_parts
from shardwise.codecs.image_crop import CropBox
from shardwise.codecs.image_headers import probe
from shardwise.codecs.image_jpeg_parts import find_turbojpeg, may_end_early, read_part
from tests.codecs.samples import encode, picture
from tests.support.properties import examples

_HEIGHT, _WIDTH = 77, 83
_CMYK = {"quality": 90}
_COLOURS = ["444", "422", "420", "440", "411", "Gray"]
# Of parts: narrow ones are upsampled in another way.
_SIDES = st.integers(1, 6) | st.integers(1, 83)
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


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    draws=st.data(),
    colours=st.sampled_from(_COLOURS),
    mode=st.sampled_from(["rgb", "gray", "rgba"]),
    height=st.integers(1, 77),
    width=st.integers(1, 83),
)
def test_any_part_of_any_image_has_its_pixels(by, draws, colours, mode, height, width):
    top, left = draws.draw(st.integers(0, height - 1)), draws.draw(st.integers(0, width - 1))
    rows = min(draws.draw(_SIDES), height - top)
    columns = min(draws.draw(_SIDES), width - left)
    data = _encode(colours, height, width)
    assert _may_end_early(data)
    part = _part(data, (top, left, rows, columns), mode)
    if part is None:
        assert by == "simplejpeg" or columns < 5
    else:
        whole = simplejpeg.decode_jpeg(data, mode.upper())
        assert np.array_equal(part, CropBox(top, left, rows, columns).cut(whole))


def test_the_rest_is_not_decoded(by):
    data = bytearray(encode(picture(200, 200), "JPEG", quality=90))
    whole = _part(data, (0, 8, 60, 70))
    at = 3 * len(data) // 4
    data[at : at + 2] = b"\xff\xd9"
    with pytest.raises(ValueError, match="jpeg"):
        image()(bytes(data))
    assert np.array_equal(_part(data, (0, 8, 60, 70)), whole)


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
    pixels = Image.fromarray(picture(90, 120)).convert("CMYK" if options is _CMYK else "RGB")
    data = encode(pixels, "JPEG", **options)
    assert not _may_end_early(data)
    whole = image(layout="HWC")(data)
    decoder = image(size=40, crop="random", layout="HWC", interpolation="nearest")
    for seed in range(4):
        box = RandomCrop().draw(np.random.default_rng(seed), 90, 120)
        png = encode(np.ascontiguousarray(box.cut(whole)), "PNG")
        expected = image(size=40, layout="HWC", interpolation="nearest")(png)
        expected = expected[:, ::-1] if box.is_mirrored else expected
        assert np.array_equal(decoder(data, np.random.default_rng(seed)), expected)


def test_a_restart_interval_before_the_frame_header_is_seen():
    data = encode(picture(90, 120), "JPEG", restart_marker_blocks=2)
    at, frame = data.index(b"\xff\xdd"), data.index(b"\xff\xc0")
    moved = data[:frame] + data[at : at + 6] + data[frame:at] + data[at + 6 :]
    assert np.array_equal(simplejpeg.decode_jpeg(moved), simplejpeg.decode_jpeg(data))
    assert not _may_end_early(moved)


def test_restart_markers_after_the_rows_mean_the_whole_image(by):
    data = encode(picture(90, 120), "JPEG", restart_marker_blocks=2)
    assert _part(data, (0, 0, 30, 30)) is None


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
