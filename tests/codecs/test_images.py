"""The image decoder: every kind of file, by every package, at every size and orientation."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import struct
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from shardwise.base.errors import MissingExtraError
from shardwise.codecs import image, image_resize
from shardwise.codecs import image_backends as backends
from shardwise.testing.decoders import check_decoder
from tests.codecs.samples import encode, files, oriented, picture

FILES = files()
INSTALLED = {
    "all": ("simplejpeg", "cv2", "PIL.Image", "cykooz_resizer"),
    "opencv_and_pillow": ("cv2", "PIL.Image"),
    "pillow": ("PIL.Image",),
}


@pytest.fixture(params=INSTALLED)
def packages(request, monkeypatch):
    """Run the test as if only these packages were installed."""
    _install(monkeypatch, INSTALLED[request.param])
    return request.param


def _install(monkeypatch, names):
    real = backends.find_package

    def find(name):
        return real(name) if name in names else None

    for module in (backends, image_resize):
        monkeypatch.setattr(module, "find_package", find)
    backends._say_slow.cache_clear()


def _distance(one, other):
    return np.abs(one.astype(int) - other.astype(int))


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_its_pixels_with_every_package(name, packages):
    data, expected, tolerance = FILES[name]
    pixels = image("rgb", layout="HWC")(data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == expected.shape
    assert _distance(pixels, expected).max() <= tolerance
    assert _distance(pixels, expected).mean() <= tolerance / 10
    assert np.array_equal(image("rgb")(data), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("name", FILES)
def test_gray_is_the_brightness_of_the_colours(name, packages):
    data, expected, tolerance = FILES[name]
    pixels = image("gray", layout="HWC")(data)
    brightness = expected @ np.array([0.299, 0.587, 0.114])
    assert pixels.shape == (*expected.shape[:2], 1)
    assert _distance(pixels[..., 0], brightness.round()).max() <= max(tolerance, 2)
    assert image("gray")(data).shape == (1, *expected.shape[:2])


@pytest.mark.parametrize("name", FILES)
def test_rgba_has_the_stored_alpha_or_is_opaque(name, packages):
    data, expected, tolerance = FILES[name]
    pixels = image("rgba", layout="HWC")(data)
    assert pixels.shape == (*expected.shape[:2], 4)
    assert _distance(pixels[..., :3], expected).max() <= tolerance
    if name in ("png_alpha", "webp_alpha", "tiff_alpha"):
        assert np.array_equal(pixels[..., 3], expected[..., 0])
    elif name == "png_gray_alpha":
        assert np.array_equal(pixels[..., 3], picture()[..., 0])
    elif name == "png_palette_transparent":
        assert set(np.unique(pixels[..., 3])) == {0, 255}
    else:
        assert (pixels[..., 3] == 255).all()


def test_16_bit_samples_with_alpha_and_colours_give_their_high_byte(packages):
    cv2 = pytest.importorskip("cv2")
    deep = picture().astype(np.uint16) * 256 + 200
    deep = np.dstack([deep[..., ::-1], deep[..., 0]])
    data = cv2.imencode(".png", deep)[1].tobytes()
    assert np.array_equal(image("rgb", layout="HWC")(data), picture())
    rgba = image("rgba", layout="HWC")(data)
    assert np.array_equal(rgba[..., :3], picture())
    assert np.array_equal(rgba[..., 3], picture()[..., 0])


def test_32_bit_samples_are_refused_with_a_reason(packages):
    data = encode(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF")
    with pytest.raises(ValueError, match="32 bits a sample"):
        image()(data)


def test_of_an_animation_the_first_frame_is_taken(packages):
    frames = [Image.fromarray(picture()).quantize(32), Image.new("P", (83, 61))]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    expected = np.asarray(frames[0].convert("RGB"))
    assert np.array_equal(image(layout="HWC")(data), expected)


@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("size", [None, (20, 31)])
def test_float32_is_the_same_picture_from_0_to_1(layout, size, packages):
    data = FILES["png"][0]
    pixels = image(layout=layout, size=size)(data)
    scaled = image(layout=layout, size=size, dtype="float32")(data)
    assert scaled.dtype == np.float32
    assert np.array_equal(scaled, pixels.astype(np.float32) / np.float32(255))
    assert scaled.max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_is_applied_only_when_asked_for(file_format, orientation, packages):
    pixels = picture(40, 64)
    data = oriented(file_format, orientation, pixels)
    tolerance = 40 if file_format == "JPEG" else 0
    stored = image(layout="HWC")(data)
    assert stored.shape == pixels.shape
    assert _distance(stored, pixels).max() <= tolerance
    tagged = Image.fromarray(stored)
    tagged.getexif()[0x0112] = orientation
    turned = np.asarray(ImageOps.exif_transpose(tagged))
    assert np.array_equal(image(layout="HWC", orient=True)(data), turned)
    half = image(layout="HWC", orient=True, size=(turned.shape[0] // 2, turned.shape[1] // 2))(data)
    if file_format != "JPEG":
        expected = Image.fromarray(turned).reduce(2)
        assert _distance(half, np.asarray(expected)).mean() <= 3


def test_a_bad_orientation_note_is_no_damage(packages):
    exif = Image.Exif()
    exif[0x0112] = 77
    data = encode(picture(), "JPEG", exif=exif)
    assert np.array_equal(image(orient=True)(data), image()(data))


@pytest.mark.parametrize("mode", ["rgb", "gray", "rgba"])
@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_the_image_decoder_passes_the_kit(mode, layout, dtype, packages):
    names = ["jpeg", "jpeg_gray", "png", "gif"]
    # Deep samples need OpenCV.
    names += ["png_16bit"] if dtype == "uint8" or packages != "pillow" else []
    samples = [FILES[name][0] for name in names]
    samples.append(encode(picture(32, 32), "JPEG"))
    decoder = image(mode, size=32, layout=layout, dtype=dtype)
    assert decoder.row is not None
    check_decoder(decoder, samples)


@pytest.mark.parametrize(
    "decoder", [image(), image(size=(9, 200), fit="crop", interpolation="area")]
)
def test_the_kit_holds_with_and_without_a_size(decoder, packages):
    samples = [
        data for name, (data, _, _) in FILES.items() if name in ("jpeg_cmyk", "webp", "tiff")
    ]
    check_decoder(decoder, samples)


@pytest.mark.parametrize("mode", ["rgb", "gray", "rgba"])
@pytest.mark.parametrize(
    "options", [{"size": (9, 20)}, {"size": (20, 31)}, {}, {"dtype": "float32"}]
)
def test_channels_last_changes_the_order_in_memory_and_nothing_else(mode, options, packages):
    data = FILES["jpeg"][0]
    planes, last = (
        image(mode, layout=layout, **options)(data) for layout in ("CHW", "channels_last")
    )
    assert np.array_equal(planes, last)
    assert planes.dtype == last.dtype
    assert planes.flags.c_contiguous
    assert last.transpose(1, 2, 0).flags.c_contiguous


def test_an_image_of_the_row_size_is_decoded_into_a_channels_last_row(monkeypatch):
    seen = []
    real = backends._read_simplejpeg

    def spy(package, data, mode, expected, out):
        seen.append(out)
        return real(package, data, mode, expected, out)

    monkeypatch.setattr(backends, "_read_simplejpeg", spy)
    pixels = image(size=(20, 30), layout="channels_last")(encode(picture(20, 30), "JPEG"))
    [out] = seen
    assert np.shares_memory(out, pixels)


def _write_never(self, pixels, out):
    raise AssertionError("pixels were copied into the row that they could be decoded into")


@pytest.mark.parametrize("layout", ["HWC", "channels_last"])
@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("height", [20, 80, 47])
def test_no_row_with_its_channels_last_is_copied(monkeypatch, layout, mode, height):
    # Of the row's size, a quarter of which is decoded, and resized.
    data = encode(picture(height, 30 * height // 20), "JPEG")
    options = {"size": (20, 30), "layout": layout, "interpolation": "linear"}
    expected = image(mode, **{**options, "layout": "CHW"})(data)
    decoder = image(mode, **options)
    monkeypatch.setattr(type(decoder), "_write", _write_never)
    pixels = decoder(data)
    planes = pixels if layout == "channels_last" else pixels.transpose(2, 0, 1)
    assert np.array_equal(planes, expected)
    decoder = image(mode, crop="random", scale=(1, 1), ratio=(1.5, 1.5), flip=1, **options)
    mirrored = decoder(data, np.random.default_rng(0))
    assert mirrored.shape == pixels.shape


def test_no_row_is_compared_with_the_memory_of_its_pixels(monkeypatch):
    # numpy's comparison gives the GIL up, and may get it back late.
    def compare(*arrays):
        raise AssertionError("np.may_share_memory was called")

    monkeypatch.setattr(np, "may_share_memory", compare)
    data = encode(picture(20, 30), "JPEG")
    image(size=(20, 30), layout="channels_last")(data)


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    wanted=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    fit=st.sampled_from(["stretch", "crop"]),
    interpolation=st.sampled_from(["bilinear", "bicubic", "area", "nearest", "linear"]),
    layout=st.sampled_from(["CHW", "HWC", "channels_last"]),
    file_format=st.sampled_from(["JPEG", "PNG"]),
)
@settings(deadline=None, max_examples=80)
def test_the_size_is_exact_and_a_plain_picture_stays_plain(
    height, width, wanted, fit, interpolation, layout, file_format
):
    data = encode(np.full((height, width, 3), (10, 100, 200), np.uint8), file_format, quality=100)
    decoder = image(size=wanted, fit=fit, interpolation=interpolation, layout=layout)
    pixels = decoder(data)
    assert pixels.shape == ((*wanted, 3) if layout == "HWC" else (3, *wanted))
    colours = pixels if layout == "HWC" else pixels.transpose(1, 2, 0)
    assert _distance(colours, np.array([10, 100, 200])).max() <= 3
    into = np.zeros_like(pixels)
    decoder.decode_into(data, into)
    assert np.array_equal(into, pixels)


def test_crop_keeps_the_aspect_and_takes_the_centre(packages):
    # Left and right thirds red, the middle green: a square crop of 1:3 is all green.
    pixels = np.zeros((60, 180, 3), np.uint8)
    pixels[...] = (200, 0, 0)
    pixels[:, 60:120] = (0, 200, 0)
    wide, tall = encode(pixels, "PNG"), encode(pixels.transpose(1, 0, 2).copy(), "PNG")
    for data in (wide, tall):
        cropped = image(size=30, fit="crop", layout="HWC")(data)
        assert (cropped == (0, 200, 0)).all()
    stretched = image(size=30, layout="HWC")(wide)
    assert (stretched[:, 2] == (200, 0, 0)).all()
    assert (stretched[:, 15] == (0, 200, 0)).all()


def test_a_large_jpeg_is_shrunk_in_the_dct_but_never_below_the_size(monkeypatch):
    seen = []
    real = backends._read_simplejpeg

    def spy(package, data, mode, expected, out, **options):
        seen.append(expected[:2])
        return real(package, data, mode, expected, out, **options)

    monkeypatch.setattr(backends, "_read_simplejpeg", spy)
    data = encode(picture(200, 301), "JPEG")
    for size, decoded in [
        (None, (200, 301)),
        ((200, 301), (200, 301)),
        ((101, 100), (200, 301)),
        ((100, 151), (100, 151)),
        ((50, 60), (50, 76)),
        ((25, 38), (25, 38)),
        ((10, 10), (25, 38)),
        ((40, 151), (100, 151)),
        ((10, 152), (200, 301)),
        ((300, 10), (200, 301)),
    ]:
        for interpolation in ("linear", "area"):
            seen.clear()
            image(size=size, interpolation=interpolation)(data)
            assert seen == [decoded], size
        # Exact results come from all of the pixels.
        for interpolation in ("bilinear", "bicubic", "nearest"):
            seen.clear()
            image(size=size, interpolation=interpolation)(data)
            assert seen == [(200, 301)], size
    turned = oriented("JPEG", 6, picture(200, 301))
    seen.clear()
    decoder = image(size=(151, 100), orient=True, interpolation="linear")
    assert decoder(turned).shape == (3, 151, 100)
    assert seen == [(100, 151)]


@pytest.mark.parametrize("shrink_to", [(61, 83), (31, 42), (16, 21), (8, 11), (5, 7)])
def test_all_packages_agree_on_a_resized_jpeg(shrink_to, monkeypatch):
    data = FILES["jpeg"][0]
    with monkeypatch.context() as context:
        _install(context, INSTALLED["all"])
        simplejpeg = image(size=shrink_to)(data)
        _install(context, INSTALLED["opencv_and_pillow"])
        opencv = image(size=shrink_to)(data)
    with monkeypatch.context() as context:
        _install(context, INSTALLED["pillow"])
        pillow = image(size=shrink_to)(data)
    assert _distance(simplejpeg, opencv).max() <= 3
    assert _distance(simplejpeg, pillow).mean() <= 4


@pytest.mark.parametrize("size", [15, 20, 30, 35, 40, 50])
def test_the_default_does_not_alias_at_any_factor(size, packages):
    checks = np.zeros((60, 60, 3), np.uint8)
    checks[::2, ::2] = checks[1::2, 1::2] = 255
    inner = image(size=size, layout="HWC")(encode(checks, "PNG"))[2:-2, 2:-2]
    # At a factor of 1.2, a triangle as wide as a new pixel lets 8 % of the finest checks through.
    assert _distance(inner, np.array(127)).max() <= (4 if size <= 30 else 60)
    assert _distance(inner, np.array(127)).mean() <= (2 if size <= 30 else 15)


@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_an_error_or_the_whole_picture(name, packages):
    data, _, _ = FILES[name]
    decoder = image(layout="HWC")
    whole = decoder(data)
    step = max(1, len(data) // 60)
    for length in [*range(0, len(data), step), *range(max(0, len(data) - 20), len(data))]:
        try:
            pixels = decoder(data[:length])
        except ValueError:
            continue
        # A missing checksum or end mark behind the last pixel loses nothing.
        assert np.array_equal(pixels, whole), f"cut to {length} of {len(data)} bytes"
        assert length > len(data) - 24, f"cut to {length} of {len(data)} bytes"


@pytest.mark.parametrize("name", ["jpeg", "jpeg_progressive"])
def test_a_jpeg_without_its_end_is_an_error_whatever_stands_behind_or_before_it(name, packages):
    thumbnail = encode(picture(8, 8), "JPEG")
    exif = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 8) + b"Exif\0\0" + thumbnail
    data = FILES[name][0]
    data = data[:2] + exif + data[2:]
    decoder = image(layout="HWC")
    assert decoder(data).shape == (61, 83, 3)
    assert np.array_equal(decoder(data + b"behind the end"), decoder(data))
    for length in range(len(data) // 2, len(data) - 2, 37):
        with pytest.raises(ValueError, match=r"jpeg|JPEG"):
            decoder(data[:length])


def test_a_png_chunk_longer_than_the_file_is_refused_before_memory_is_taken(packages):
    data = bytearray(FILES["png_palette"][0])
    at = data.index(b"IDAT") - 4
    data[at] = 255
    with pytest.raises(ValueError, match="no end chunk"):
        image()(bytes(data))


class _Lenient:
    """An OpenCV that makes up what is missing, as some versions do."""

    error = RuntimeError
    IMREAD_COLOR, IMREAD_COLOR_RGB, IMREAD_IGNORE_ORIENTATION = 1, 256, 128
    IMREAD_UNCHANGED = -1
    shape = (61, 83, 3)

    @classmethod
    def imdecode(cls, data, flags):
        return np.full(cls.shape, 128, np.uint8)


@pytest.fixture
def lenient(monkeypatch):
    monkeypatch.setattr(backends, "find_package", lambda name: _Lenient if name == "cv2" else None)
    return image(layout="HWC")


def test_a_silent_gray_fill_of_the_package_does_not_pass(lenient):
    data = FILES["jpeg"][0]
    assert lenient(data).shape == (61, 83, 3)
    with pytest.raises(ValueError, match="no end marker"):
        lenient(data[:-40])


def test_a_picture_of_another_size_than_the_header_says_does_not_pass(lenient, monkeypatch):
    monkeypatch.setattr(_Lenient, "shape", (61, 82, 3))
    with pytest.raises(ValueError, match=r"promises \(61, 83, 3\).*made \(61, 82, 3\)"):
        lenient(FILES["jpeg"][0])


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_damaged_files_raise_value_errors_only(data):
    name = data.draw(st.sampled_from(sorted(FILES)))
    raw = bytearray(FILES[name][0])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, min(len(raw), 400) - 1))] = data.draw(st.integers(0, 255))
    for decoder in (image(max_pixels=10**6), image("gray", size=16, orient=True, max_pixels=10**6)):
        with contextlib.suppress(ValueError):
            decoder(bytes(raw))


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff", b"GIF89a", b"BM", b"no image"]
)
def test_what_is_no_image_is_an_error_that_says_so(data, packages):
    with pytest.raises(ValueError, match=r"bytes|header|image"):
        image()(data)


def _huge_png(width, height):
    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_refused_by_its_header(packages):
    with pytest.raises(ValueError, match="more than max_pixels=178956970"):
        image()(_huge_png(50_000, 50_000))
    for name, (data, expected, _) in FILES.items():
        height, width = expected.shape[:2]
        with pytest.raises(ValueError, match=f"{height} x {width} pixels, more than max_pixels"):
            image(max_pixels=height * width - 1)(data)
        assert image(max_pixels=height * width)(data).shape == (3, height, width), name


def test_a_jpeg_inflated_in_its_header_is_an_error_with_simplejpeg():
    data = bytearray(FILES["jpeg"][0])
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 7] = struct.pack(">H", 3000)
    with pytest.raises(ValueError, match=r"jpeg|JPEG"):
        image(layout="HWC")(bytes(data))


def test_without_packages_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(backends, "find_package", lambda name: None)
    decoder = image()
    with pytest.raises(MissingExtraError, match=r"shardwise\[image\]") as caught:
        decoder(FILES["jpeg"][0])
    assert caught.value.extra == "image"


def test_simplejpeg_alone_reads_jpeg_but_can_not_resize(monkeypatch):
    _install(monkeypatch, ("simplejpeg",))
    data = FILES["jpeg"][0]
    assert image()(data).shape == (3, 61, 83)
    assert image(size=(61, 83), layout="HWC")(data).shape == (61, 83, 3)
    for interpolation in ("bilinear", "bicubic", "area", "nearest", "linear"):
        with pytest.raises(MissingExtraError, match=f"resizes images by '{interpolation}'"):
            image(size=20, interpolation=interpolation)(data)
    with pytest.raises(MissingExtraError, match="png"):
        image()(FILES["png"][0])


def test_a_missing_package_is_found_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    backends.find_package.cache_clear()
    try:
        assert backends.find_package("simplejpeg") is None
        assert backends.find_package("PIL.Image") is Image
    finally:
        backends.find_package.cache_clear()


def test_pillow_alone_says_once_that_it_is_slow(monkeypatch, caplog):
    _install(monkeypatch, ("PIL.Image",))
    with caplog.at_level(logging.WARNING, logger="shardwise"):
        for _ in range(3):
            image()(FILES["jpeg"][0])
            image()(FILES["png"][0])
    assert [record.name for record in caplog.records] == ["shardwise"]
    assert "shardwise[image]" in caplog.text


def test_decoding_leaves_the_threads_of_opencv_alone():
    cv2 = pytest.importorskip("cv2")
    before = cv2.getNumThreads()
    image(size=20)(FILES["png"][0])
    assert cv2.getNumThreads() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "bgr"}, "mode='bgr'"),
        ({"mode": "RGB"}, "did you mean 'rgb'"),
        ({"mode": 224}, "did you mean size=224"),
        ({"fit": "pad"}, "fit='pad'"),
        ({"layout": "NCHW"}, "layout='NCHW'"),
        ({"dtype": "float64"}, "dtype='float64'"),
        ({"size": 0}, r"size=\(0, 0\)"),
        ({"size": (5, -1)}, r"size=\(5, -1\)"),
        ({"size": (224,)}, r"size=\(224,\)\): give one number or \(height, width\)"),
        ({"max_pixels": 0}, "max_pixels=0"),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        image(**options)


def test_the_decoder_is_a_value():
    decoder = image("gray", size=np.int64(24), fit="crop")
    assert decoder == image("gray", size=(24, 24), fit="crop")
    assert hash(decoder) == hash(image("gray", size=24, fit="crop"))
    assert repr(decoder) == "image('gray', size=(24, 24), fit='crop')"
    assert repr(image()) == "image('rgb')"
    assert pickle.loads(pickle.dumps(decoder)) == decoder
    assert decoder.row == ((1, 24, 24), np.dtype("uint8"))
    assert image().row is None


def test_decode_into_refuses_what_does_not_fit():
    data = FILES["png"][0]
    with pytest.raises(ValueError, match="needs a size"):
        image().decode_into(data, np.empty((3, 61, 83), np.uint8))
    for out in (np.empty((3, 9, 8), np.uint8), np.empty((3, 8, 8), np.float32)):
        with pytest.raises(ValueError, match=r"writes uint8 of shape \(3, 8, 8\)"):
            image(size=8).decode_into(data, out)


@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("size", [(61, 83), (20, 30), (30, 41), (100, 90)])
def test_decode_into_writes_any_array_of_the_shape(layout, size, packages):
    for name in ("jpeg", "png"):
        decoder = image(size=size, layout=layout)
        expected = decoder(FILES[name][0])
        # Every second row of a larger array: not in one piece of memory.
        spread = np.zeros((*expected.shape[:-1], 2 * expected.shape[-1]), np.uint8)
        out = spread[..., ::2]
        decoder.decode_into(FILES[name][0], out)
        assert np.array_equal(out, expected)
        assert not spread[..., 1::2].any()


def test_the_result_of_pillow_itself_is_met():
    data = FILES["jpeg"][0]
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert _distance(image(layout="HWC")(data), expected).max() <= 3


@pytest.mark.parametrize("others", [["cv2", "PIL.Image"], ["PIL.Image"], []])
def test_a_jpeg_of_a_subsampling_that_simplejpeg_lacks_is_read_by_the_next_package(
    monkeypatch, others
):
    pixels = Image.fromarray(picture(48, 64)).convert("CMYK")
    data = encode(pixels, "JPEG", subsampling=2, quality=95)
    packages = {name: backends.find_package(name) for name in ("simplejpeg", *others)}
    monkeypatch.setattr(backends, "find_package", packages.get)
    if not others:
        with pytest.raises(ValueError, match="subsampling"):
            image()(data)
        return
    truth = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert _distance(image(layout="HWC")(data), truth).max() <= 1
    image(size=8, crop="random")(data, np.random.default_rng(0))
