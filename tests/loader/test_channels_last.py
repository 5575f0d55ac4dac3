"""Batches of images with their channels last in memory, torch's channels_last, of all executors."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

import shardwise as sw


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    with sw.TarWriter(str(folder / "{shard:02d}.tar"), max_samples=16) as writer:
        for i in range(40):
            file = io.BytesIO()
            pixels = np.random.default_rng(i).integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file, "JPEG")
            damaged = {"cls": 1, "jpg": file.getvalue()[:300]} if i == 3 else {}
            sample = {"__key__": f"{i:04d}", "jpg": file.getvalue(), "cls": i}
            writer.write({**sample, **damaged})
    return str(folder / "*.tar")


def loader(shards, layout, **options):
    data = sw.tar(shards).decode(jpg=sw.image(size=(9, 13), layout=layout), cls=int)
    options = {"shuffle": "full", "seed": 5, "on_error": "skip", **options}
    return sw.DataLoader(data, 8, rank=0, world_size=1, **options)


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"num_threads": 2}, {"num_workers": 2}])
def test_batches_are_channels_last_and_have_the_values_of_planes(shards, options):
    with (
        loader(shards, "channels_last", **options) as own,
        loader(shards, "CHW", num_threads=0) as reference,
    ):
        sizes = set()
        for batch, expected in zip(own, reference, strict=True):
            images = batch["jpg"]
            assert images.shape[1:] == (3, 9, 13)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert expected["jpg"].is_contiguous()
            assert torch.equal(images, expected["jpg"])
            sizes.add(len(images))
        # One batch lost its damaged sample, and is a copy of its other rows.
        assert sizes == {7, 8}


def test_batches_that_a_program_keeps_stay_channels_last(shards, monkeypatch):
    # Their memory is scarce: they are copied.
    monkeypatch.setattr("shardwise.engine.processes.shared_memory.max_slots", lambda: 1)
    with loader(shards, "channels_last", num_workers=1) as own:
        kept = [batch["jpg"] for batch in own]
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images in kept)
    with loader(shards, "CHW", num_threads=0) as reference:
        for images, expected in zip(kept, reference, strict=True):
            assert torch.equal(images, expected["jpg"])
