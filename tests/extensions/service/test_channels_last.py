"""Batches of a server keep the memory layout of their images."""

from __future__ import annotations

import numpy as np

from shardwise.extensions.service.batches import Decoder, Encoder


def test_batches_of_a_server_are_channels_last():
    images = np.arange(120, dtype=np.uint8).reshape(2, 4, 5, 3).transpose(0, 3, 1, 2)
    encoder = Encoder()
    code = encoder.value({"jpg": images, "x": images[:, :, ::2]})
    batch = Decoder(encoder.arrays).value(code)
    assert np.array_equal(batch["jpg"], images)
    assert batch["jpg"].strides == images.strides
    assert np.array_equal(batch["x"], images[:, :, ::2])
