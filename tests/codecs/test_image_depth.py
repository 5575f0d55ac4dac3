"""16-bit and float pictures, and normalised ones: PNG and TIFF files to uint16 and float32."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from shardwise.base.errors import MissingExtraError
from shardwise.codecs import image, image_backends
from shardwise.testing import check_decoder
from tests.codecs.samples import encode, picture

cv2 = pytest.importorskip("cv2")
HAS_ALL = {"uint16": 65535, "float32": 1.0}


def deep(height=40, width=50, channels=1):
    """uint16 `[height, width, channels]` of all 16 bits."""
    rng = np.random.default_rng(channels)
    return rng.integers(0, 65536, (height, width, channels), dtype=np.uint16)


def stored(pixels, extension):
    """A file of pixels, red first."""
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[pixels.shape[2]]
    return cv2.imencode(extension, np.ascontiguousarray(pixels[..., order]))[1].tobytes()


@pytest.fixture
def pillow_alone(monkeypatch):
    real = image_backends.find_package
    monkeypatch.setattr(
        image_backends, "find_package", lambda name: real(name) if "PIL" in name else None
    )


@pytest.mark.parametrize("extension", [".png", ".tiff"])
@pytest.mark.parametrize(("mode", "channels"), [("gray", 1), ("rgb", 3), ("rgba", 4)])
def test_16_bits_are_kept_as_uint16_and_from_0_to_1_as_float32(extension, mode, channels):
    pixels = deep(channels=channels)
    data = stored(pixels, extension)
    assert np.array_equal(image(mode, layout="HWC", dtype="uint16")(data), pixels)
    scaled = image(mode, layout="HWC", dtype="float32")(data)
    assert np.array_equal(scaled, pixels / np.float32(65535))
    assert np.array_equal(image(mode, layout="HWC")(data), pixels >> 8)


@pytest.mark.parametrize("extension", [".png", ".tiff"])
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_16_bit_channels_are_converted_as_8_bit_ones_are(extension, dtype):
    gray, colours = deep(), deep(channels=4)
    options = {"layout": "HWC", "dtype": dtype}
    one, three, four = (
        image(mode, **options)(stored(gray, extension)) for mode in ("gray", "rgb", "rgba")
    )
    assert np.array_equal(three, one.repeat(3, axis=2))
    assert np.array_equal(four[..., :3], three)
    assert (four[..., 3] == HAS_ALL[dtype]).all()
    mixed = image("gray", **options)(stored(colours, extension))
    expected = colours[..., :3] @ np.array([0.299, 0.587, 0.114]) * (HAS_ALL[dtype] / 65535)
    assert np.abs(mixed[..., 0] - expected).max() <= HAS_ALL[dtype] / 65535 * 2
    without = image("rgb", **options)(stored(colours, extension))
    assert np.array_equal(without, image("rgba", **options)(stored(colours, extension))[..., :3])


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_white_is_the_largest_value_of_every_dtype_whatever_the_file(file_format):
    data = encode(np.full((8, 8, 3), 255, np.uint8), file_format)
    for dtype, white in {"uint8": 255, **HAS_ALL}.items():
        pixels = image(dtype=dtype)(data)
        assert (pixels.dtype, pixels.min()) == (dtype, white)
    eight = image()(encode(picture(), "PNG"))
    assert np.array_equal(image(dtype="uint16")(encode(picture(), "PNG")) >> 8, eight)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32])
@pytest.mark.parametrize("channels", [1, 3])
def test_tiff_files_of_floats_and_integers_stay_as_stored_in_float32(dtype, channels):
    values = (deep(channels=channels).astype(np.float64) / 7 - 3000).astype(dtype)
    data = stored(values, ".tiff")
    mode = {1: "gray", 3: "rgb"}[channels]
    assert np.array_equal(
        image(mode, layout="HWC", dtype="float32")(data), values.astype(np.float32)
    )
    with pytest.raises(ValueError, match="dtype='float32'"):
        image(mode, dtype="uint16")(data)


@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("mode", ["gray", "rgb"])
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_deep_files_are_resized_cropped_and_batched(layout, mode, dtype):
    payloads = [stored(deep(40 + n, 50), ".png") for n in range(2)]
    payloads += [stored(deep(60, 33, 3), ".tiff"), encode(picture(), "JPEG")]
    for options in ({}, {"crop": "random"}, {"fit": "crop", "interpolation": "bicubic"}):
        decoder = image(mode, size=(20, 24), layout=layout, dtype=dtype, **options)
        assert decoder.row[1] == dtype
        check_decoder(decoder, payloads)


def test_labels_of_16_bits_are_not_mixed():
    labels = np.repeat(np.repeat(np.arange(300, dtype=np.uint16).reshape(15, 20) * 211, 3, 0), 3, 1)
    data = stored(labels[..., None], ".png")
    own = image("gray", size=(31, 47), interpolation="nearest", dtype="uint16")(data)
    assert set(np.unique(own)) <= set(np.unique(labels))


def test_without_opencv_deep_files_are_refused(pillow_alone):
    data = stored(deep(), ".png")
    assert image("gray")(data).dtype == np.uint8
    with pytest.raises(MissingExtraError, match="OpenCV"):
        image("gray", dtype="uint16")(data)


def test_a_deep_tiff_of_inks_is_refused_and_a_turned_one_stays_as_stored():
    data = bytearray(stored(deep(channels=3), ".tiff"))
    tags = {tag: at for tag, _, at in image_backends.tiff_entries(memoryview(data), 0)}
    struct.pack_into("<H", data, tags[262], 5)
    with pytest.raises(ValueError, match="neither gray nor RGB"):
        image(dtype="uint16")(bytes(data))
    pixels = deep()
    turned = io.BytesIO()
    Image.fromarray(pixels[..., 0]).save(turned, "TIFF", tiffinfo={274: 6})
    options = {"layout": "HWC", "dtype": "uint16"}
    assert np.array_equal(image("gray", **options)(turned.getvalue()), pixels)
    upright = image("gray", orient=True, **options)(turned.getvalue())
    assert np.array_equal(upright[..., 0], np.rot90(pixels[..., 0], -1))


@pytest.mark.parametrize("extension", [".png", ".tiff"])
def test_a_cut_deep_file_is_an_error_or_the_whole_picture(extension):
    data = stored(deep(channels=3), extension)
    decoder = image(dtype="uint16")
    whole = decoder(data)
    for length in range(0, len(data), len(data) // 40):
        try:
            pixels = decoder(data[:length])
        except ValueError:
            continue
        assert np.array_equal(pixels, whole), length


# BigTIFF.


def big(pixels, order="<"):
    """A BigTIFF of one strip."""
    height, width, channels = pixels.shape
    raw = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    bits = 8 * pixels.dtype.itemsize
    entries = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, [bits] * channels),
        (259, 3, 1, 1), (262, 3, 1, 1 if channels == 1 else 2), (273, 16, 1, 16),
        (277, 3, 1, channels), (278, 4, 1, height), (279, 16, 1, len(raw)),
    ]  # fmt: skip
    out = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HHHQ", 43, 8, 0, 16 + len(raw))
    out += raw + struct.pack(f"{order}Q", len(entries))
    for tag, kind, count, value in entries:
        values = value if isinstance(value, list) else [value]
        form = {3: "H", 4: "I", 16: "Q"}[kind]
        packed = struct.pack(f"{order}{len(values)}{form}", *values).ljust(8, b"\0")
        out += struct.pack(f"{order}HHQ", tag, kind, count) + packed
    return out + bytes(8)


@pytest.mark.parametrize("order", ["<", ">"])
def test_bigtiff_is_read_in_both_byte_orders(order):
    if order == "<":  # Pillow does not know the other of 8 bits
        assert np.array_equal(image(layout="HWC")(big(picture(20, 30))), picture(20, 30))
    for channels, mode in ((1, "gray"), (3, "rgb")):
        own = image(mode, layout="HWC", dtype="uint16")(big(deep(channels=channels), order))
        assert np.array_equal(own, deep(channels=channels))


def test_a_bigtiff_with_a_damaged_header_is_an_error():
    data = big(picture(20, 30))
    whole = image()(data)
    rng = np.random.default_rng(0)
    directory = len(data) - 8 - 9 * 20 - 8
    for _ in range(300):
        bad = bytearray(data)
        at = int(rng.choice([rng.integers(0, 16), rng.integers(directory, len(data))]))
        bad[at] = int(rng.integers(256))
        try:
            pixels = image(max_pixels=10**6)(bytes(bad))
        except ValueError:
            continue
        assert pixels.ndim == whole.ndim


# Normalising.


@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("options", [{}, {"size": (20, 24)}, {"size": 20, "crop": "random"}])
def test_mean_and_std_normalise_as_torchvision_does(layout, options):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    rng = {"rng": np.random.default_rng(3)} if "crop" in options else {}
    again = {"rng": np.random.default_rng(3)} if rng else {}
    data = encode(picture(), "JPEG")
    own = image(layout=layout, mean=mean, std=std, **options)(data, **rng)
    plain = image(layout=layout, dtype="float32", **options)(data, **again)
    axes = (1, 1, 3) if layout == "HWC" else (3, 1, 1)
    expected = (plain - np.float32(mean).reshape(axes)) / np.float32(std).reshape(axes)
    assert own.dtype == np.float32
    assert np.array_equal(own, expected)


def test_one_number_normalises_all_channels():
    assert image(mean=0.5, std=0.5) == image(mean=[0.5] * 3, std=(0.5, 0.5, 0.5), dtype="float32")
    data = encode(picture(), "PNG")
    assert image("gray", mean=0.5, std=0.5)(data).min() >= -1
    check_decoder(image("rgba", size=8, mean=0.5, std=0.25, layout="channels_last"), [data])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": 0.5}, "give both"),
        ({"std": 0.5}, "give both"),
        ({"mean": 0.5, "std": 0.5, "dtype": "uint8"}, "dtype='float32'"),
        ({"mean": 0.5, "std": 0.5, "dtype": "uint16"}, "dtype='float32'"),
        ({"mean": (0.5, 0.5), "std": 0.5}, "mean"),
        ({"mean": 0.5, "std": 0.0}, "above 0"),
        ({"mean": 0.5, "std": float("nan")}, "std"),
        ({"mean": float("inf"), "std": 1.0}, "mean"),
        ({"mean": "half", "std": 1.0}, "mean"),
    ],
)
def test_what_can_not_normalise_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        image(**options)
