"""Fields whose values differ in shape: told once, refused, or padded, in every executor alike."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
import torch

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from tests.support.memory_source import MemorySource

NUM = 60
WAYS = [{"num_threads": 0}, {"num_threads": 3}, {"num_workers": 2}]


def sample(i):
    return {
        "odd": np.arange(1 + i * 7 % 5, dtype="<i2").tobytes(),
        "img": np.full((2, 2), i, np.uint8).tobytes(),
        "cls": str(i).encode(),
        "txt": b"t" * i,
    }


def data():
    """`odd` int16 [1..5], `img` uint8 [2, 2], `cls`, `txt`."""
    source = MemorySource([sample(i) for i in range(NUM)])
    return Dataset(source).decode(
        odd=sw.array("<i2"), img=sw.array("uint8", (2, 2)), cls=int, txt=str
    )


def make(dataset=None, **options):
    given = {"output": "numpy", "rank": 0, "world_size": 1, "batch_size": 12, **options}
    return sw.DataLoader(data() if dataset is None else dataset, **given)


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_padding_fills_up_to_the_largest_of_the_batch_and_marks_what_was_there(output):
    for batch in make(ragged="pad", shuffle="full", output=output, num_threads=0):
        odd, mask = np.asarray(batch["odd"]), np.asarray(batch["odd.mask"])
        sizes = [1 + i * 7 % 5 for i in batch["cls"].tolist()]
        assert odd.shape == mask.shape == (12, max(sizes))
        assert (odd.dtype, mask.dtype) == (np.int16, np.bool_)
        for row, kept, size in zip(odd, mask, sizes, strict=True):
            assert row.tolist() == [*range(size), *[0] * (max(sizes) - size)]
            assert kept.tolist() == [at < size for at in range(max(sizes))]


def test_a_padded_field_has_one_form_in_every_batch_and_a_fixed_one_no_mask():
    # Batches of one sample are never ragged; the last ones of ranks 2 and 3 are empty.
    forms = set()
    for rank in range(4):
        for batch in make(batch_size=29, remainder="uneven", ragged="pad", rank=rank, world_size=4):
            forms.add(tuple((name, getattr(c, "ndim", 0)) for name, c in batch.items()))
    for batch in make(batch_size=1, ragged="pad", num_threads=0):
        forms.add(tuple((name, getattr(c, "ndim", 0)) for name, c in batch.items()))
    assert len(forms) == 1
    assert "img.mask" not in dict(forms.pop())


def test_tensors_of_a_map_are_padded_too():
    mapped = data().map(lambda s: {"x": torch.arange(s["cls"] % 4 + 1)})
    batch = next(iter(make(mapped, ragged="pad", output="torch", num_threads=0)))
    assert batch["x"].shape == (12, 4)
    assert batch["x.mask"].sum(1).tolist() == [1, 2, 3, 4] * 3


def test_a_ragged_field_is_told_once_with_the_remedy(caplog):
    with caplog.at_level(logging.WARNING, "shardwise"):
        loader = make(num_threads=0)
        for _ in range(2):
            list(loader)
    (record,) = caplog.records
    for part in ("'odd'", "int16 [3] beside int16 [1]", "sample 1 of memory:", "size=", "'pad'"):
        assert part in record.getMessage()


def test_fields_that_can_be_stacked_or_never_are_are_not_told(caplog):
    with caplog.at_level(logging.WARNING, "shardwise"):
        list(make(data().select("img", "cls", "txt"), num_threads=0))
        list(make(data().select("img").map(lambda s: {"x": torch.zeros(2)}), num_threads=0))
    assert caplog.records == []


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_ragged_field_can_be_refused(way):
    with make(ragged="error", **way) as loader, pytest.raises(DataError, match="size=") as caught:
        list(loader)
    assert (caught.value.field, caught.value.index) == ("odd", 1)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, None, 3], r"no value beside a int; say what stands for a null, by fill="),
        ([np.zeros(2), None, np.zeros(2)], r"no value beside float64 \[2\]; .* fill="),
        ([np.zeros(2), np.zeros((1, 2))], r"\[1, 2\] beside float64 \[2\]; .* of dimensions"),
        ([np.zeros(2), np.zeros(2, np.float32)], r"float32 \[2\] beside float64 \[2\]; .* dtype"),
        ([np.zeros(2), 3], r"a int beside float64 \[2\]; give all of them one type"),
        ([np.float32(1), 2.0], r"a float beside float32 \[\]"),
        ([True, 1], "a int beside a bool; give all of them one type"),
    ],
    ids=str,
)
def test_whatever_breaks_the_form_of_a_field_is_refused(values, told):
    with pytest.raises(DataError, match=told):
        list(make([{"x": v} for v in values], batch_size=len(values), ragged="error"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ragged": "trim"}, "'list', 'error', 'pad'"),
        ({"ragged": "pad", "collate": len}, "collate="),
    ],
)
def test_ways_that_do_not_exist_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def packs(lengths, seed):
    tokens = [
        {"tokens": np.arange(1, n + 1)} for n in np.random.default_rng(seed).choice(lengths, 60)
    ]
    return sw.pack(sw.wrap(tokens), length=32, progress=False)


def attended(batch, row):
    """The tokens of each document of a pack, by its bounds."""
    bounds, tokens = (np.asarray(batch[name][row]) for name in ("cu_seqlens", "tokens"))
    assert (np.diff(bounds) >= 0).all()
    assert bounds[-1] == 32
    return [tokens[a:b].tolist() for a, b in itertools.pairwise(bounds) if b > a]


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("ragged", ["list", "error", "pad", "nested", "collate"])
@pytest.mark.extension
def test_packs_keep_their_own_padding(ragged, is_mapped, caplog):
    short, long = packs([2, 3], 0), packs([11, 13], 1)
    data = sw.mix({"a": (short, 0.5), "b": (long, 0.5)}, until=12)
    data = data.map(dict) if is_mapped else data
    way = {"collate": sw.pad(multiple=8)} if ragged == "collate" else {"ragged": ragged}
    seen = 0
    for batch in sw.DataLoader(data, 4, shuffle=True, num_threads=0, **way):
        assert "cu_seqlens.mask" not in batch
        assert batch["cu_seqlens"].ndim == batch["documents"].ndim == 2
        for row, key in enumerate(batch["__key__"]):
            seen += len(attended(batch, row))
            documents = np.asarray(batch["documents"][row])
            used = (np.asarray(batch["document_ids"][row]) >= 0).sum()
            assert used == (np.asarray(batch["loss_mask"][row])).sum(), key
            assert (documents[np.argmin(documents) :] == -1).all() or (documents >= 0).all()
    assert seen > 40
    assert "can't be stacked" not in caplog.text


def test_lists_of_numbers_are_padded_as_arrays_are(caplog):
    items = [{"input_ids": list(range(n))} for n in (3, 1, 0, 3)]
    loader = make(sw.wrap(items), ragged="pad", batch_size=4)
    [batch] = loader
    assert batch["input_ids"].tolist() == [[0, 1, 2], [0, 0, 0], [0, 0, 0], [0, 1, 2]]
    assert batch["input_ids.mask"].sum(axis=1).tolist() == [3, 1, 0, 3]
    [batch] = make(sw.wrap(items), batch_size=4)
    assert batch["input_ids"] == [[0, 1, 2], [0], [], [0, 1, 2]]
    assert "ragged='pad'" in caplog.text
