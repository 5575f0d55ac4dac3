"""What samples, datasets, loaders and plans look like: short, escaped, with thumbnails."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import re

import numpy as np
import pytest
import torch

import shardwise as sw
from shardwise.dataset import Dataset
from shardwise.dataset.display import Sample
from tests.support.memory_source import MemorySource

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 200, 300), np.uint8)


def jpeg():
    import cv2

    return cv2.imencode(".jpg", PIXELS.transpose(1, 2, 0))[1].tobytes()


def pictures():
    samples = [{"__key__": f"<b>{i}</b>", "jpg": jpeg(), "cls": b"3"} for i in range(20)]
    return Dataset(MemorySource(samples, [5, 15], name="p")).decode(cls=int)


def thumbnails(html):
    decode = sw.image("rgb", layout="HWC")
    found = re.findall(r"src='data:image/png;base64,([^']+)'", html)
    return [decode(base64.b64decode(data)) for data in found]


def test_a_sample_prints_in_one_line_and_is_a_dict_in_everything_else():
    sample = pictures().map(lambda s: {**s, "x": PIXELS, "t": "y" * 999, "n": [1] * 99})[4]
    text = repr(sample)
    assert len(text) < 500
    assert "\n" not in text
    for part in ("bytes b'\\xff\\xd8", "<uint8 [3, 200, 300]>", "<999 characters", "'cls': 3"):
        assert part in text
    assert isinstance(sample, dict)
    small = pictures().select("cls")[4]
    assert repr(small) == repr(dict(small)) == "{'__key__': '<b>4</b>', 'cls': 3}"
    assert json.loads(json.dumps(small)) == small == copy.deepcopy(small)
    for twin in (pickle.loads(pickle.dumps(small)), copy.copy(small), small | {}):
        assert type(twin) is dict


def test_torch_collates_samples_as_dicts():
    loader = torch.utils.data.DataLoader(pictures().select("cls"), batch_size=4)
    assert type(next(iter(loader))) is dict
    singly = torch.utils.data.default_collate([pictures().select("cls")[i] for i in range(2)])
    assert singly["cls"].tolist() == [3, 3]


@pytest.mark.parametrize(
    "value",
    [
        jpeg(),
        PIXELS,
        PIXELS.transpose(1, 2, 0),
        PIXELS[0],
        PIXELS / np.float32(255),
        torch.tensor(PIXELS),
    ],
    ids=["jpeg", "CHW", "HWC", "gray", "float", "tensor"],
)
def test_a_picture_is_shown_as_a_thumbnail(value):
    (shown,) = thumbnails(Sample(x=value)._repr_html_())
    assert shown.shape == (50, 75, 3)
    expected = PIXELS.transpose(1, 2, 0)[::4, ::4]
    if not isinstance(value, bytes) and np.ndim(value) == 3:
        assert np.abs(shown.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("value", [b"\xff\xd8\xff no picture", np.zeros((3, 0, 4), np.uint8), [1]])
def test_what_is_no_picture_has_no_thumbnail(value):
    assert thumbnails(Sample(x=value)._repr_html_()) == []


def test_a_dataset_shows_its_facts_and_its_first_pictures_escaped():
    html = pictures()._repr_html_()
    assert len(thumbnails(html)) == 8
    assert "<b>" not in html
    assert "&lt;b&gt;0" in html
    for part in (">20<", ">2<", "jpg, cls"):
        assert part in html


def test_a_dataset_that_can_not_be_read_says_why():
    html = sw.tar("nowhere-<b>.tar")._repr_html_()
    assert "MissingShardError" in html
    assert "<b>" not in html


def test_a_loader_and_a_plan_say_what_they_are():
    loader = sw.DataLoader(pictures(), batch_size=3, rank=1, world_size=2, num_threads=0, seed=4)
    for text in (repr(loader), loader._repr_html_()):
        for part in ("memory", "batch_size", "world_size", "num_steps", "SequentialSampler(20)"):
            assert part in text.replace("MemorySource", "memory")
    assert repr(loader).startswith("DataLoader(Dataset(")
    html = loader.plan._repr_html_()
    for name in ("num_dropped", "world_size", "SequentialSampler(20)"):
        assert name in html
