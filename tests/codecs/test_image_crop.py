"""Random crops of images: torchvision's distribution, exact cuts, one result on every way."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.codecs import RandomCrop, image
from shardwise.codecs import image_backends as backends
from shardwise.testing import check_decoder
from tests.codecs.samples import encode, oriented, picture
from tests.support.properties import examples

_SIZES = st.integers(1, 400)


@settings(max_examples=examples(300), deadline=None)
@given(
    height=_SIZES,
    width=_SIZES,
    seed=st.integers(0, 2**32),
    scale=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted).map(tuple),
    ratio=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted).map(tuple),
)
def test_a_random_crop_lies_in_the_image_and_keeps_its_bounds(height, width, seed, scale, ratio):
    crop = RandomCrop(scale=scale, ratio=ratio)
    box = crop.draw(np.random.default_rng(seed), height, width)
    assert box.height >= 1
    assert box.width >= 1
    assert 0 <= box.top <= height - box.height
    assert 0 <= box.left <= width - box.width
    # Half a pixel of rounding on each side.
    assert (box.height - 0.5) * ratio[0] <= box.width + 0.5 or box.width == width
    assert (box.width - 0.5) <= (box.height + 0.5) * ratio[1] or box.height == height
    assert box == crop.draw(np.random.default_rng(seed), height, width)


def test_area_and_logarithm_of_the_ratio_are_uniform_and_half_are_mirrored():
    crop = RandomCrop(scale=(0.1, 0.4), ratio=(0.5, 2.0))
    rng = np.random.default_rng(0)
    # So large and so small a part that the first try always fits.
    boxes = [crop.draw(rng, 4000, 4000) for _ in range(4000)]
    areas = np.array([box.height * box.width / 4000**2 for box in boxes])
    ratios = np.array([np.log2(box.width / box.height) for box in boxes])
    for values, low, high in ((areas, 0.1, 0.4), (ratios, -1.0, 1.0)):
        counts, _ = np.histogram(values, bins=8, range=(low, high))
        assert counts.sum() >= 3990
        # Eight cells of 500: six standard deviations of 21.
        assert np.abs(counts - 500).max() < 126
    assert abs(sum(box.is_mirrored for box in boxes) - 2000) < 190
    tops = np.array([box.top / (4000 - box.height) for box in boxes])
    assert abs(tops.mean() - 0.5) < 0.03


def test_an_image_in_which_no_part_fits_gives_the_largest_around_its_centre():
    crop = RandomCrop(scale=(1.0, 1.0), flip=0.0)
    wide = crop.draw(np.random.default_rng(0), 10, 1000)
    assert (wide.top, wide.height, wide.width, wide.left) == (0, 10, 13, 493)
    tall = crop.draw(np.random.default_rng(0), 1000, 10)
    assert (tall.left, tall.width, tall.height, tall.top) == (0, 10, 13, 493)


@pytest.mark.parametrize("packages", [("cv2", "PIL.Image"), ("PIL.Image",)])
@pytest.mark.parametrize("layout", ["CHW", "HWC", "channels_last"])
def test_the_pixels_are_those_of_the_part_cut_before_resizing(packages, layout, monkeypatch):
    real = backends.find_package
    monkeypatch.setattr(backends, "find_package", lambda n: real(n) if n in packages else None)
    pixels = picture(60, 90)
    data = encode(pixels, "PNG")
    decoder = image(size=(24, 32), crop="random", scale=(0.2, 0.9), layout=layout)
    mirrored = set()
    for seed in range(8):
        box = RandomCrop(scale=(0.2, 0.9)).draw(np.random.default_rng(seed), 60, 90)
        cut = box.cut(pixels)
        expected = image(size=(24, 32), layout="HWC")(encode(np.ascontiguousarray(cut), "PNG"))
        expected = expected[:, ::-1] if box.is_mirrored else expected
        own = decoder(data, np.random.default_rng(seed))
        assert np.array_equal(own if layout == "HWC" else own.transpose(1, 2, 0), expected)
        mirrored.add(box.is_mirrored)
    assert mirrored == {True, False}


def test_a_jpeg_is_cut_exactly_where_it_would_be_decoded_at_a_half():
    data = encode(picture(400, 400), "JPEG", quality=95)
    whole = image(layout="HWC")(data)
    decoder = image(size=40, crop="random", layout="HWC", flip=0.0)
    for seed in range(3):
        box = RandomCrop().draw(np.random.default_rng(seed), 400, 400)
        cut = np.ascontiguousarray(box.cut(whole))
        expected = image(size=40, layout="HWC")(encode(cut, "PNG"))
        assert np.array_equal(decoder(data, np.random.default_rng(seed)), expected)


def test_an_image_and_its_mask_share_the_crop_and_the_mask_keeps_its_labels():
    labels = np.repeat(np.repeat(np.arange(48, dtype=np.uint8).reshape(6, 8), 10, 0), 10, 1)
    colours = np.stack([labels * 5, labels * 5, labels * 5], -1)
    options = {"size": 40, "crop": "random", "layout": "HWC"}
    picture_of = image("rgb", interpolation="nearest", **options)
    mask_of = image("gray", interpolation="nearest", **options)
    other_of = image("gray", interpolation="nearest", stream=1, **options)
    assert (picture_of.stream, other_of.stream) == (0, 1)
    for seed in range(6):
        shown = picture_of(encode(colours, "PNG"), np.random.default_rng(seed))
        mask = mask_of(encode(labels, "PNG"), np.random.default_rng(seed))
        assert np.array_equal(shown[..., 0], mask[..., 0] * 5)
        assert set(np.unique(mask)) <= set(range(48))


@pytest.mark.parametrize("mode", ["rgb", "gray", "rgba"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_the_decoder_keeps_the_protocol(mode, dtype):
    payloads = [encode(picture(50 + n, 70), "JPEG", quality=90) for n in range(3)]
    decoder = image(mode, size=(20, 30), crop="random", dtype=dtype)
    check_decoder(decoder, payloads)
    assert pickle.loads(pickle.dumps(decoder)) == decoder
    assert decoder.row == image(mode, size=(20, 30), dtype=dtype).row


def test_a_turned_image_is_cropped_upright():
    tall = picture(90, 30)
    # Shown after a quarter turn clockwise.
    turned = oriented("PNG", 6, np.ascontiguousarray(np.rot90(tall)))
    own = image(size=12, crop="random", orient=True)(turned, np.random.default_rng(3))
    upright = image(size=12, crop="random")(encode(tall, "PNG"), np.random.default_rng(3))
    assert np.array_equal(own, upright)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8, "crop": "centre"}, "crop='centre'"),
        ({"crop": "random"}, "give a size"),
        ({"size": 8, "crop": "random", "fit": "crop"}, "leave fit= out"),
        ({"size": 8, "scale": (0.1, 1)}, "add crop='random'"),
        ({"size": 8, "flip": 0.5}, "add crop='random'"),
        ({"size": 8, "crop": "random", "scale": (0.0, 1.0)}, "scale"),
        ({"size": 8, "crop": "random", "scale": (0.5, 0.1)}, "scale"),
        ({"size": 8, "crop": "random", "scale": (0.5, 1.5)}, "scale"),
        ({"size": 8, "crop": "random", "scale": 0.5}, "give 2 numbers"),
        ({"size": 8, "crop": "random", "scale": (float("nan"), 1.0)}, "scale"),
        ({"size": 8, "crop": "random", "ratio": (0.0, 1.0)}, "ratio"),
        ({"size": 8, "crop": "random", "ratio": (1.0, float("inf"))}, "ratio"),
        ({"size": 8, "crop": "random", "flip": 1.5}, "flip"),
        ({"size": 8, "antialias": False, "interpolation": "bicubic"}, "always antialiased"),
        ({"size": 8, "interpolation": "cubic"}, "did you mean 'bicubic'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        image(**options)


def test_a_damaged_file_is_an_error_before_anything_is_drawn():
    data = encode(picture(50, 70), "JPEG", quality=90)
    decoder = image(size=8, crop="random")
    with pytest.raises(ValueError, match="jpeg"):
        decoder(data[: len(data) // 2], np.random.default_rng(0))
    out = np.empty((3, 9, 9), np.uint8)
    with pytest.raises(ValueError, match="the array to write into"):
        decoder.decode_into(data, out, np.random.default_rng(0))


def noted(called, method):
    def call(*arguments):
        called.append(method.__name__)
        return method(*arguments)

    return call


def _stored(folder, files):
    with sw.TarWriter(folder / "a.tar") as writer:
        for number, data in enumerate(files):
            writer.write({"__key__": f"{number}", "jpg": data})
    return sw.tar(folder / "a.tar")


@pytest.mark.parametrize("size", [32, 96])
@pytest.mark.parametrize("options", [{}, {"crop": "random"}])
def test_the_headers_of_a_chunk_are_read_first_and_its_images_are_those_one_by_one(
    tmp_path, monkeypatch, options, size
):
    files = [encode(picture(90 + 10 * seed, 120), "JPEG") for seed in range(5)]
    decoder = image(size=size, **options)
    ds = _stored(tmp_path, files).decode(jpg=decoder)
    out = np.ones((5, 3, size, size), np.uint8)
    called = []
    with monkeypatch.context() as patch:
        for name in ("draw", "decode_drawn_into"):
            patch.setattr(type(decoder), name, noted(called, getattr(type(decoder), name)))
        ds.load(np.arange(5), out={"jpg": out})
    assert called == ["draw"] * 5 + ["decode_drawn_into"] * 5
    for row, sample in enumerate(ds):
        assert np.array_equal(out[row], sample["jpg"])


@pytest.mark.parametrize("options", [{}, {"crop": "random"}])
@pytest.mark.parametrize("kept", [0, 40, 900])
def test_a_damaged_image_of_a_chunk_is_named(tmp_path, kept, options):
    files = [encode(picture(90 + seed, 120), "JPEG") for seed in range(4)]
    files[2] = files[2][:kept]
    ds = _stored(tmp_path, files).decode(jpg=image(size=32, **options))
    with pytest.raises(sw.DataError) as caught:
        ds.load(np.arange(4), out={"jpg": np.empty((4, 3, 32, 32), np.uint8)})
    assert (caught.value.index, caught.value.field) == (2, "jpg")
