"""Parts of images resized on a device are those that the CPU makes, but for rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.codecs import image
from shardwise.extensions.device_images import decoding as device_images
from shardwise.extensions.device_images.decoding import resized
from shardwise.extensions.device_images.packing import PackingImage
from tests.codecs.samples import encode, picture


def differences(decoder, pixels, seed=0):
    """What the CPU makes of lossless files, less what is made of their pixels as on a device."""
    found = []
    rows, images = [], []
    for each in pixels:
        data = encode(each, "JPEG", quality=90)
        rng = np.random.default_rng(seed)
        _, facts = PackingImage(decoder)(data, rng)
        packed = PackingImage(decoder).pack_column([(data, facts)])
        assert not packed.rows["is_pixels"][0]
        rows.append(packed.rows)
        whole = image(decoder.mode, layout="HWC")(data)
        images.append(torch.from_numpy(whole).permute(2, 0, 1))
        keyed = {"rng": np.random.default_rng(seed)} if hasattr(decoder, "crop") else {}
        found.append(decoder(data, **keyed).astype(int))
    there = resized(decoder, np.concatenate(rows), images).numpy().astype(int)
    return np.stack(found) - there


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(16, 150), st.integers(16, 150)), min_size=1, max_size=4),
    out=st.tuples(st.integers(8, 90), st.integers(8, 90)),
    seed=st.integers(0, 2**32),
    options=st.sampled_from([{}, {"interpolation": "bicubic"}]),
)
def test_a_random_crop_is_the_cpus_but_for_rounding(sizes, out, seed, options):
    decoder = image(size=out, crop="random", decode_on="device", **options)
    off = differences(decoder, [picture(*size) for size in sizes], seed)
    # The CPU rounds once more, between columns and rows.
    assert np.abs(off).max() <= (1 if decoder.interpolation == "bilinear" else 2)


@pytest.mark.parametrize("fit", ["stretch", "crop"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(60, 60), (61, 83), (200, 90), (20, 31), (7, 9)])
def test_a_sized_image_is_the_cpus_but_for_rounding(size, fit, interpolation):
    decoder = image(size=size, fit=fit, interpolation=interpolation, decode_on="device")
    off = np.abs(differences(decoder, [picture(61, 83), picture(90, 64), picture(300, 201)]))
    assert off.max() <= (1 if interpolation == "bilinear" else 2)
    assert off.mean() < 0.3


def test_groups_that_take_little_memory_give_the_same_rows(monkeypatch):
    pixels = [picture(20 + 7 * n, 90 - 6 * n) for n in range(8)]
    decoder = image(size=16, decode_on="device")
    at_once = differences(decoder, pixels)
    monkeypatch.setattr(device_images, "_MAX_NUMBERS", 3 * 90 * 80)
    groups = list(device_images._groups(np.arange(8), _sizes(pixels)))
    assert len(groups) > 2
    assert sorted(np.concatenate(groups).tolist()) == list(range(8))
    assert np.array_equal(differences(decoder, pixels), at_once)


def _sizes(pixels):
    rows = np.empty(len(pixels), [("height", np.int32), ("width", np.int32)])
    rows[:] = [each.shape[:2] for each in pixels]
    return rows


class HostSizes(TorchDispatchMode):
    """Notes how large the tensors are that operations make in host memory."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device.type == "cpu":
            self.sizes.append(made.numel())
        return made


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_nothing_of_the_size_of_images_is_made_in_host_memory(interpolation):
    """The device "meta" stands for one; a host takes milliseconds for the weights of an image."""
    decoder = image(size=(224, 224), interpolation=interpolation, decode_on="device")
    data = encode(picture(90, 120), "JPEG")
    packing = PackingImage(decoder)
    packed = packing.pack_column([packing(data, np.random.default_rng(0))] * 8)
    pixels = [torch.empty(3, 90, 120, dtype=torch.uint8, device="meta")] * 8
    with HostSizes() as host:
        there = resized(decoder, packed.rows, pixels)
    assert (there.device.type, there.shape) == ("meta", (8, 3, 224, 224))
    assert max(host.sizes) <= 8
