"""AVIF and HEIC files, where their packages are, and what is said where they are not."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from PIL import Image, features

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.codecs import image
from tests.codecs.samples import encode, picture

NEEDS_AVIF = pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")
# As much of a file as its format is told by.
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
AVIF = b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(40)


def heic(pixels, **options):
    pillow_heif = pytest.importorskip("pillow_heif")
    return encode_by(pillow_heif.from_pillow(Image.fromarray(pixels)), **options)


def encode_by(file, **options):
    import io

    stream = io.BytesIO()
    file.save(stream, **options)
    return stream.getvalue()


@NEEDS_AVIF
def test_avif_files_are_decoded_at_any_size_and_dtype():
    pixels = picture(60, 90)
    data = encode(pixels, "AVIF", quality=100, subsampling="4:4:4")
    own = image(layout="HWC")(data)
    assert np.abs(own.astype(int) - pixels).mean() < 2
    assert image("gray", size=20, dtype="uint16")(data).shape == (1, 20, 20)
    alpha = np.dstack([pixels, pixels[..., 0]])
    rgba = image("rgba", layout="HWC")(encode(alpha, "AVIF", quality=100))
    assert np.abs(rgba[..., 3].astype(int) - alpha[..., 3]).mean() < 2
    assert (image("rgba")(data)[3] == 255).all()


@NEEDS_AVIF
def test_an_avif_is_turned_only_when_asked_for():
    pixels = picture(40, 64)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(pixels, "AVIF", quality=100, subsampling="4:4:4", exif=exif)
    stored = image(layout="HWC")(data)
    assert stored.shape == (40, 64, 3)
    turned = image(layout="HWC", orient=True)(data)
    assert np.array_equal(turned, np.rot90(stored, -1))


def test_heic_files_are_decoded_by_pillow_heif():
    pixels = picture(60, 90)
    data = heic(pixels, quality=100, chroma=444)
    own = image(layout="HWC")(data)
    assert np.abs(own.astype(int) - pixels).mean() < 3
    assert image(size=(20, 31))(data).shape == (3, 20, 31)


@pytest.mark.parametrize("make", ["avif", "heic"])
def test_cut_and_damaged_files_are_errors_or_pictures_of_their_size(make):
    pixels = picture(60, 90)
    if make == "avif" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    data = heic(pixels) if make == "heic" else encode(pixels, "AVIF")
    rng = np.random.default_rng(0)
    decoder = image(max_pixels=10**6)
    for turn in range(120):
        bad = bytearray(data)
        if turn % 2:
            bad = bad[: int(rng.integers(len(bad)))]
        else:
            bad[int(rng.integers(min(len(bad), 500)))] = int(rng.integers(256))
        try:
            pixels = decoder(bytes(bad))
        except ValueError:
            continue
        assert pixels.shape[0] == 3


def test_too_many_pixels_are_refused_by_the_header():
    pytest.importorskip("pillow_heif")
    with pytest.raises(ValueError, match="more than max_pixels=100"):
        image(max_pixels=100)(heic(picture(60, 90)))


@pytest.mark.parametrize(
    ("data", "module", "needed"),
    [
        (HEIC, "pillow_heif", "pip install 'pillow-heif'"),
        (AVIF, "avif", "pip install 'pillow>=11.3'"),
    ],
)
def test_a_missing_package_is_named(data, module, needed, monkeypatch, tmp_path):
    if module == "avif":
        none = types.SimpleNamespace(check=lambda name: False)
        monkeypatch.setitem(sys.modules, "PIL.features", none)
    else:
        monkeypatch.setitem(sys.modules, module, None)
    with sw.TarWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "0", "heic": data})
    with pytest.raises(DataError, match=needed):
        sw.tar(tmp_path / "a.tar").decode(heic=image())[0]


def test_a_video_is_no_picture():
    with pytest.raises(ValueError, match="no JPEG, PNG"):
        image()(b"\0\0\0\x18ftypisom\0\0\0\0isomavc1" + bytes(40))
