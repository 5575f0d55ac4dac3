"""Fields of TFRecord files: feature lists of SequenceExamples, and features that are rare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from tests.support.tfrecords import example, record_file, sequence_example

CONTEXT = {"label": [7]}
LISTS = {
    "ids": [[1], [2], [-3]],
    "boxes": [[0.5, 1.0], [], [2.0]],
    "frames": [[b"a"], [b"bb"], [b""]],
    "words": [[b"x", b"y"], [b"z"]],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.tfrecord"


def open_records(path: Path, *records: bytes, features=None) -> sw.Dataset:
    path.write_bytes(record_file(records))
    return sw.tfrecord(path, features=features)


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("context", [CONTEXT, {}])
@pytest.mark.parametrize(
    "features",
    [None, ["ids", "boxes", "frames", "words"],
     {"ids": "int64[]", "boxes": "float32[][]", "frames": "bytes[]", "words": "bytes[][]"}],
)  # fmt: skip
def test_feature_lists_are_fields_with_and_without_a_context(path, context, features):
    sample = open_records(path, sequence_example(context, LISTS), features=features)[0]
    assert plain(sample["ids"]) == [1, 2, -3]
    assert sample["ids"].dtype == np.int64
    assert plain(sample["boxes"]) == LISTS["boxes"]
    assert [step.dtype for step in sample["boxes"]] == [np.float32] * 3
    assert sample["frames"] == [b"a", b"bb", b""]
    assert sample["words"] == LISTS["words"]
    assert sample.get("label") == (7 if context and features is None else None)


def test_records_of_different_lengths_make_ragged_batches(path):
    records = [sequence_example({}, {"ids": [[i]] * i, "n": [[i] * i]}) for i in range(1, 4)]
    ds = open_records(path, *records, features={"ids": "int64[]", "n": "int64[][]"})
    (batch,) = sw.DataLoader(ds, batch_size=3, ragged="list")
    assert [plain(each) for each in batch["ids"]] == [[1], [2, 2], [3, 3, 3]]
    assert [plain(each) for each in batch["n"]] == [[[1]], [[2, 2]], [[3, 3, 3]]]


def test_lists_and_steps_without_values_have_the_kind_that_was_asked(path):
    records = [sequence_example({}, {"ids": []}), sequence_example({}, {"ids": [[], []]})]
    deep = open_records(path, *records, features={"ids": "int64[][]"})
    assert [plain(sample["ids"]) for sample in deep] == [[], [[], []]]
    assert deep[1]["ids"][0].dtype == np.int64
    flat = sw.tfrecord(path, features={"ids": "int64[]"})
    assert flat[0]["ids"].dtype == np.int64
    with pytest.raises(sw.DataError, match=r"'int64\[\]\[\]'"):
        flat[1]


@pytest.mark.parametrize(
    ("lists", "kind", "message"),
    [
        ({"ids": [[1], [2, 3]]}, "int64[]", r"up to 2 values per step.*'int64\[\]\[\]'"),
        ({"ids": [[1], [2]]}, "int64", r"up to 1 values per step.*'int64\[\]'"),
        ({"ids": [[1.5]]}, "int64[]", "is float32, and was int64"),
        ({"ids": [[1], [b"x"]]}, "int64[]", "steps .* are bytes and int64"),
        ({"label": [[1]]}, "int64[]", "both a feature of the context and a feature list"),
    ],
)
def test_steps_of_another_form_are_refused_by_name(path, lists, kind, message):
    record = sequence_example(CONTEXT, lists)
    ds = open_records(path, record, features={next(iter(lists)): f"{kind}?"})
    with pytest.raises(sw.DataError, match=message):
        ds[0]


def test_a_plain_feature_has_no_steps(path):
    ds = open_records(path, example({"ids": [1, 2]}), features={"ids": "int64[][]"})
    with pytest.raises(sw.DataError, match=r"no steps.*'int64\[\]'"):
        ds[0]


def test_only_the_selected_features_are_parsed_and_new_ones_are_still_told(path, caplog):
    first = sequence_example(CONTEXT, {"mixed": [[1], [2]]})
    # Parsed, it would be an error.
    later = sequence_example(CONTEXT | {"late": [3]}, {"mixed": [[1], [b"a"]]})
    dataset = open_records(path, first, later).select("label")
    assert [sample["label"] for sample in dataset] == [7, 7]
    (record,) = caplog.records
    assert "these as {'late': 'int64?'}" in record.getMessage()


def test_damaged_feature_lists_are_data_errors(path):
    whole = sequence_example({}, LISTS)
    for cut in range(1, len(whole)):
        # The checksums fit: it was written so.
        ds = open_records(path, whole[:cut], features={"ids": "int64[]?"})
        try:
            assert plain(ds[0].get("ids")) in (None, [1, 2, -3])
        except sw.DataError:
            continue


@pytest.mark.parametrize("first", [0, 999, 1_000, 1_500])
def test_a_feature_that_only_a_late_record_has_is_taken(path, first):
    records = [example({"label": [1]})] * 1_501
    records[first] = example({"late": [2]})
    ds = open_records(path, *records, features={"late": "int64"})
    assert ds[first]["late"] == 2
    assert "late" not in ds[first - 1]


def test_a_feature_that_no_record_of_the_first_file_has_is_refused_with_a_near_name(tmp_path):
    for name, features in (("a", {"label": [1], "image": [b"x"]}), ("b", {"late": [2]})):
        (tmp_path / f"{name}.tfrecord").write_bytes(record_file([example(features)] * 1_200))
    with pytest.raises(sw.DataError, match=r"1200 records.*'labl', but 'image', 'label'.*'label'"):
        sw.tfrecord(tmp_path, features={"labl": "int64"})[0]
    with pytest.raises(sw.DataError, match=r"features=\{'late': 'int64\?'\}"):
        sw.tfrecord(tmp_path, features={"late": "int64"})[0]
    assert sw.tfrecord(tmp_path, features={"late": "int64?"})[1_200]["late"] == 2


def test_files_after_a_short_first_one_are_looked_at(tmp_path):
    for name, features in (("a", {"label": [1]}), ("b", {"late": [2]})):
        (tmp_path / f"{name}.tfrecord").write_bytes(record_file([example(features)]))
    assert sw.tfrecord(tmp_path, features={"late": "int64"})[1]["late"] == 2


def test_a_record_of_other_bytes_does_not_end_the_look(path):
    records = [b"\xff" * 9, example({"label": [1]})]
    with pytest.raises(sw.DataError, match=r"a feature 'labl', but 'label'"):
        open_records(path, *records, features={"labl": "int64"})[1]


def test_features_that_the_first_record_lacks_are_told_once(path, caplog):
    first, later = {"id": [1]}, {"id": [2], "late": [3], "more": [b"a", b"b"]}
    dataset = open_records(path, *map(example, [first, later, later, first]))
    assert [plain(sample["id"]) for sample in dataset] == [1, 2, 2, 1]
    (record,) = caplog.records
    kinds = {"late": "int64?", "more": "bytes[]?"}
    told = "features that the first record lacks, and that are left out: name all that are meant"
    assert told in record.getMessage()
    assert record.getMessage().endswith(f"these as {kinds}")
    dataset = open_records(path, *map(example, [first, later]), features={"id": "int64", **kinds})
    assert [plain(sample.get("late")) for sample in dataset] == [None, 3]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("features", [{"id": "int64"}, ("id",)])
def test_features_that_were_not_asked_for_are_not_told(path, caplog, features):
    records = map(example, [{"id": [1]}, {"id": [2], "late": [3]}])
    assert len(list(open_records(path, *records, features=features))) == 2
    assert caplog.records == []
