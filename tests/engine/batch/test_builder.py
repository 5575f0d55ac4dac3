"""Damaged samples: raised, skipped with a count, or replaced alike in every run."""

import numpy as np
import pytest

from shardwise.base.errors import DataError, StaleIndexError
from shardwise.dataset import Dataset
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest
from tests.support.memory_source import MemorySource, numbered_samples


def dataset_with_damage(*damaged, num_samples=20):
    source = MemorySource(numbered_samples(num_samples))
    for index in damaged:
        source.fail_at(index)
    return Dataset(source).decode(cls=int)


def make(dataset, ids, **options):
    return BatchBuilder(dataset, **options).build(BatchRequest(0, 0, np.array(ids, dtype=np.int64)))


def test_skip_leaves_the_row_out_and_counts_it():
    batch = make(dataset_with_damage(3), [1, 3, 4], on_error="skip")
    assert batch.data["__index__"].tolist() == [1, 4]
    assert batch.data["cls"].tolist() == [1, 4]
    assert batch.data["__key__"] == ["key-00001", "key-00004"]
    assert (batch.num_rows, batch.num_skipped, batch.num_replaced) == (2, 1, 0)


def test_skip_keeps_the_marks_of_padding_beside_their_rows():
    work = BatchRequest(0, 0, np.array([1, 3, 4]), np.array([True, True, False]))
    batch = BatchBuilder(dataset_with_damage(3), on_error="skip").build(work)
    assert batch.data["__valid__"].tolist() == [True, False]


def test_a_batch_of_damaged_samples_alone_is_skipped_to_an_empty_batch():
    batch = make(dataset_with_damage(1, 2), [1, 2], on_error="skip")
    assert batch.data["__index__"].tolist() == []
    assert list(batch.data["__key__"]) == []
    assert (batch.num_rows, batch.num_skipped) == (0, 2)


def test_replace_puts_the_same_substitute_in_every_run():
    dataset = dataset_with_damage(3)
    batch = make(dataset, [1, 3, 4], on_error="replace", seed=5)
    again = make(dataset, [3], on_error="replace", seed=5)
    substitute = int(batch.data["__index__"][1])
    assert substitute != 3
    assert batch.data["cls"].tolist() == [1, substitute, 4]
    assert again.data["__index__"].tolist() == [substitute]
    assert (batch.num_rows, batch.num_skipped, batch.num_replaced) == (3, 0, 1)


def test_replace_gives_up_where_everything_is_damaged():
    with pytest.raises(DataError, match="substitutes") as caught:
        make(dataset_with_damage(*range(20)), [3], on_error="replace")
    assert caught.value.index == 3


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_file_that_was_replaced_is_no_damaged_sample(on_error):
    source = MemorySource(numbered_samples(20))
    for index in range(20):
        source.fail_at(index, StaleIndexError("replaced", url="x_tar"))
    with pytest.raises(StaleIndexError, match="x_tar"):
        make(Dataset(source), [3, 4], on_error=on_error)


def test_a_substitute_whose_file_was_replaced_is_an_error():
    source = MemorySource(numbered_samples(20))
    for index in range(20):
        source.fail_at(index, StaleIndexError("replaced", url="x_tar") if index != 3 else None)
    with pytest.raises(StaleIndexError, match="x_tar"):
        make(Dataset(source), [3], on_error="replace")


def test_an_unknown_on_error_is_refused():
    with pytest.raises(ValueError, match="on_error='ignore'"):
        BatchBuilder(dataset_with_damage(), on_error="ignore")


def test_the_users_collate_gets_samples_with_their_index():
    batch = make(dataset_with_damage().select("cls"), [4, 2], collate=list)
    assert batch.data == [
        {"__key__": "key-00004", "cls": 4, "__index__": 4},
        {"__key__": "key-00002", "cls": 2, "__index__": 2},
    ]


def test_samples_whose_transform_returns_other_fields_are_an_error():
    def odd(sample):
        return {**sample, "extra": 1} if sample["cls"] == 70 else sample

    maker = BatchBuilder(dataset_with_damage(num_samples=80).map(odd))
    draft = maker.begin(BatchRequest(0, 0, np.arange(80)))
    for start in range(0, 80, 8):
        if start <= 70 < start + 8:
            with pytest.raises(DataError, match="extra"):
                maker.fill(draft, start, start + 8)
