"""`filter`: a mask or a function of columns, exact, with equal steps."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.dataset import Dataset
from tests.support.memory_source import MemorySource, numbered_samples

NUM = 1300  # more than two of the parts that are read at a time


def source():
    return MemorySource(numbered_samples(NUM), [600, 700])


def test_a_function_of_columns_keeps_the_samples_for_which_it_holds():
    memory = source()
    kept = Dataset(memory).decode(cls=int).filter(lambda c: c["cls"] % 3 == 1, columns=["cls"])
    assert {fields for _, fields in memory.reads} == {("cls",)}, "other fields are not read"
    assert max(len(ids) for ids, _ in memory.reads) < NUM
    assert [s["cls"] for s in kept] == list(range(1, NUM, 3))
    assert kept.fields == ("cls", "txt", "bin")
    assert kept.shard_sizes.tolist() == [200, 233]


def test_a_mask_does_the_same_and_a_state_belongs_to_the_samples_that_are_left():
    data = Dataset(source()).decode(cls=int)
    mask = np.arange(NUM) % 3 == 1
    kept = data.filter(mask)
    assert kept.fingerprint == data.filter(lambda c: c["cls"] % 3 == 1, columns=["cls"]).fingerprint
    assert kept.fingerprint != data.filter(~mask).fingerprint
    assert data.map(dict).filter(mask)[1]["cls"] == 4


def test_a_filter_of_a_subset_sees_its_samples_by_key():
    data = Dataset(source()).subset([5, 3, 1299])
    for columns in ([], ["__key__"]):
        kept = data.filter(lambda c: [key > "key-00004" for key in c["__key__"]], columns=columns)
        assert [s["__key__"] for s in kept] == ["key-00005", "key-01299"]


def test_texts_are_a_list_as_in_a_batch_and_a_comparison_of_it_is_refused_with_the_way():
    data = Dataset(source()).decode(txt=str)
    one = data[7]["txt"]
    kept = data.filter(lambda c: [text == one for text in c["txt"]], columns=["txt"])
    assert [s["__key__"] for s in kept] == ["key-00007"]
    with pytest.raises(TypeError, match=r"texts, which are a list"):
        data.filter(lambda c: c["txt"] == one, columns=["txt"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d: d.filter(lambda c: c["cls"]), TypeError, r"columns=\['cls'\]"),
        (lambda d: d.filter(lambda c: True, columns="cls"), TypeError, r"columns=\['cls'\]"),
        (lambda d: d.filter(lambda c: True, columns=["cls"]), TypeError, "one boolean each"),
        (lambda d: d.filter(lambda c: c["cls"], columns=["cls"]), TypeError, "returned int64"),
        (lambda d: d.filter(lambda c: c, columns=["jpg"]), ValueError, "no field 'jpg'"),
        (lambda d: d.map(dict).filter(lambda c: c, columns=["cls"]), ValueError, r"after map\(\)"),
        (lambda d: d.filter([0, 1]), TypeError, r"subset\(indices\)"),
        (lambda d: d.filter([True]), ValueError, "1300 samples"),
    ],
)
def test_what_no_filter_can_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(Dataset(source()).decode(cls=int))
