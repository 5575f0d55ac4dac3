"""Fields that some samples lack: None, or zeros with a mask, by every way to load a batch."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from PIL import Image

import shardwise as sw
from shardwise.testing import assert_batches_equal


def jpeg(value):
    file = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), value, np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def dataset(tmp_path):
    with sw.TarWriter(str(tmp_path / "{shard}.tar"), max_samples=7) as writer:
        for number in range(20):
            sample = {"__key__": f"{number:02d}", "cls": number}
            if number % 3:
                sample |= {"jpg": jpeg(100 + number), "txt": f"text {number}"}
            writer.write(sample)
    return sw.tar(tmp_path)


EXECUTORS = [
    {"executor": "inline"},
    {"num_workers": 0, "num_threads": 2},
    {"num_workers": 1, "num_threads": 1},
]


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize("crop", [{}, {"crop": "random"}, {"layout": "channels_last"}], ids=str)
def test_a_missing_picture_is_zeros_and_a_mask_says_so(dataset, options, crop):
    decoded = dataset.decode(
        jpg=sw.optional(sw.image(size=16, **crop)), txt=sw.optional(str), cls=int
    )
    assert pickle.loads(pickle.dumps(decoded))[0]["txt"] is None
    with sw.DataLoader(decoded, 8, remainder="uneven", output="numpy", **options) as loader:
        batches = list(loader)
        assert loader.stats()["missing"] == {"jpg": 7, "txt": 7}
        again = loader.batch_at(1, epoch=0)
    assert_batches_equal(again, batches[1])
    masks = np.concatenate([batch["jpg.mask"] for batch in batches])
    assert masks.tolist() == [number % 3 > 0 for number in range(20)]
    pixels = np.concatenate([batch["jpg"] for batch in batches])
    assert pixels.shape == (20, 3, 16, 16)
    assert not pixels[~masks].any()
    assert (
        abs(pixels[masks].reshape(sum(masks), -1).mean(1) - 100 - np.flatnonzero(masks)) < 2
    ).all()
    texts = [text for batch in batches for text in batch["txt"]]
    assert texts == [f"text {number}" if number % 3 else None for number in range(20)]
    for number in (0, 1):
        sample = decoded[number]
        assert (bool(sample["jpg.mask"]), sample["jpg"].any()) == (number > 0, number > 0)


def test_stored_values_and_damaged_ones_are_what_they_are(dataset, tmp_path):
    stored = dataset.decode(txt=sw.optional())
    assert (stored[0]["txt"], stored[1]["txt"]) == (None, b"text 1")
    assert sw.optional(sw.optional(str)) == sw.optional(str)
    with pytest.raises(sw.DataError, match="txt"):
        dataset.decode(txt=sw.optional(int))[1]
    with pytest.raises(sw.DataError, match="has no field"):
        dataset.decode(txt=str)[0]


class Outer:
    """A decoder of a user's, around another one."""

    decoder = sw.image(size=4)

    def __call__(self, data, rng):
        return int(rng.integers(10**9))


@pytest.mark.extension
def test_a_decoder_around_a_keyed_one_gets_its_numbers(dataset):
    whole = dataset.subset([1, 2])
    plain = [sample["txt"] for sample in whole.decode(txt=Outer())]
    assert [sample["txt"] for sample in whole.decode(txt=sw.optional(Outer()))] == plain
    assert [s["*.txt"] for s in whole.decode({"*.txt": Outer()})] == [[number] for number in plain]
    decoded = whole.decode(txt=sw.optional(len))
    assert decoded.cost.runs_python
    assert not whole.decode(txt=sw.optional()).cost.runs_python
    assert [sample["txt"] for sample in decoded] == [6, 6]


def test_what_is_no_decoder_is_refused():
    with pytest.raises(TypeError, match="decoder=3"):
        sw.optional(3)
    with pytest.raises(TypeError, match="has no argument size="):
        sw.optional(size=3)
