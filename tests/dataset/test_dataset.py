"""The dataset as a map: lengths, indices, blocks, fields, fingerprints, pickles."""

import pickle

import numpy as np
import pytest
import torch

from shardwise.dataset import Dataset
from tests.support.memory_source import MemorySource, numbered_samples

SIZES = [5, 0, 7, 20]


@pytest.fixture
def source():
    return MemorySource(numbered_samples(sum(SIZES)), SIZES)


def sample(i):
    return {
        "__key__": f"key-{i:05d}",
        "cls": str(i).encode(),
        "txt": f"text {i}".encode(),
        "bin": np.int64(i).tobytes(),
    }


def test_a_sample_is_its_key_and_the_bytes_of_its_fields(source):
    ds = Dataset(source)
    assert len(ds) == 32
    assert ds[3] == sample(3)
    assert all(type(value) is bytes for name, value in ds[3].items() if name != "__key__")


@pytest.mark.parametrize("index", [0, 31, -1, -32, np.int32(7), np.uint8(7), torch.tensor(7)])
def test_any_integer_is_an_index(source, index):
    assert Dataset(source)[index] == sample(int(index) % 32)


@pytest.mark.parametrize("index", [32, -33, 10**12, np.int64(32)])
def test_an_index_past_the_end_is_an_index_error_with_both_numbers(source, index):
    with pytest.raises(IndexError, match=rf"{index} of 32"):
        Dataset(source)[index]


@pytest.mark.parametrize("index", [True, np.True_, 1.0, "1", None])
def test_what_is_no_integer_is_no_index(source, index):
    with pytest.raises(TypeError):
        Dataset(source)[index]


@pytest.mark.parametrize(
    ("indices", "wanted"),
    [
        ([4, 31, 4], [4, 31, 4]),
        ([-1, 0], [31, 0]),
        (slice(2, 5), [2, 3, 4]),
        (slice(None, None, -10), [31, 21, 11, 1]),
        (np.array([6, 7]), [6, 7]),
        (range(3), [0, 1, 2]),
        (torch.tensor([9]), [9]),
        ([], []),
    ],
)
def test_several_indices_give_a_list_read_at_once(source, indices, wanted):
    assert Dataset(source)[indices] == [sample(i) for i in wanted]
    assert [ids for ids, _ in source.reads] == ([tuple(wanted)] if wanted else [])


def test_the_first_bad_one_of_several_indices_is_named(source):
    with pytest.raises(IndexError, match=r"index 40, number 1 of 3, is not in \[-32, 32\)"):
        Dataset(source)[[1, 40, 50]]
    with pytest.raises(TypeError, match="subset"):
        Dataset(source)[np.zeros(32, dtype=bool)]
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        Dataset(source)[[[1, 2], [3, 4]]]


def test_torchs_fetcher_reads_a_batch_at_once(source):
    ds = Dataset(source).select("cls").decode(cls=int)
    loader = torch.utils.data.DataLoader(ds, batch_size=8, collate_fn=list)
    assert [[s["cls"] for s in batch] for batch in loader] == np.arange(32).reshape(4, 8).tolist()
    assert len(source.reads) == 4


def test_iteration_goes_in_storage_order(source):
    assert list(Dataset(source)) == [sample(i) for i in range(32)]


def test_iteration_reads_no_more_than_it_needs_to_begin(source):
    assert next(iter(Dataset(source))) == sample(0)
    assert len(source.reads) == 1


@pytest.mark.parametrize(
    ("samples", "blocks"),
    [
        ([{"bin": bytes(3 << 20)}] * 40, [16, 5, 5, 5, 5, 4]),
        (numbered_samples(3000), [16, 32, 64, 128, 256, 512, 1024, 968]),
    ],
    ids=["large", "small"],
)
def test_blocks_of_large_samples_are_small_and_those_of_small_ones_grow(samples, blocks):
    source = MemorySource(samples)
    assert sum(1 for _ in Dataset(source)) == len(samples)
    assert [len(ids) for ids, _ in source.reads] == blocks


def test_an_empty_dataset_has_nothing():
    ds = Dataset(MemorySource([]))
    assert len(ds) == 0
    assert list(ds) == []
    assert ds[:] == []
    with pytest.raises(IndexError):
        ds[0]
    with pytest.raises(IndexError):
        ds[-1]


def test_only_selected_fields_are_read_in_the_order_selected(source):
    ds = Dataset(source).select("txt", "cls")
    assert ds.fields == ("txt", "cls")
    assert list(ds[1]) == ["__key__", "txt", "cls"]
    list(ds)
    ds.load(np.arange(3))
    assert {fields for _, fields in source.reads} == {("txt", "cls")}


def test_nothing_selected_leaves_the_keys(source):
    ds = Dataset(source).select()
    assert ds[1] == {"__key__": "key-00001"}
    assert ds.load(np.arange(2)) == {"__key__": ["key-00000", "key-00001"]}


def test_an_unknown_field_is_told_with_the_fields_there_are(source):
    ds = Dataset(source)
    with pytest.raises(ValueError, match="no field 'jpg': the fields are 'cls', 'txt', 'bin'"):
        ds.select("cls", "jpg")
    with pytest.raises(ValueError, match="no field 'jpg': the fields are 'cls', 'txt', 'bin'"):
        ds.decode(jpg=bytes)
    with pytest.raises(ValueError, match="no field 'txt': the selected fields are 'cls'"):
        ds.select("cls").decode(txt=str)
    with pytest.raises(ValueError, match="no field 'txt'"):
        ds.select("cls").select("txt")
    with pytest.raises(ValueError, match=r"no field \('cls', 'txt'\)"):
        ds.select(("cls", "txt"))


def test_each_method_leaves_its_dataset_as_it_was(source):
    ds = Dataset(source)
    ds.select("cls")
    ds.decode(cls=int)
    ds.map(lambda sample: {})
    ds.subset([1])
    assert ds[2] == sample(2)
    assert len(ds) == 32


def test_fields_are_chosen_and_decoded_before_transforms(source):
    ds = Dataset(source).map(dict)
    for call in (lambda: ds.select("cls"), lambda: ds.decode(cls=int), ds.decode):
        with pytest.raises(ValueError, match="after map"):
            call()


def test_the_repr_says_what_was_asked_for(source):
    ds = Dataset(source).select("cls").decode(cls=len).map(dict).subset([1, 2])
    assert repr(ds).endswith(".select('cls').decode(cls=len).map(dict).subset(2 samples))")
    assert "MemorySource" in repr(ds)


def test_pickles_are_small_and_equal(source):
    ds = Dataset(source).select("cls").decode(cls=int).map(dict).subset([3, 1])
    ds.fingerprint, ds.shard_sizes, ds[0]
    again = pickle.loads(pickle.dumps(ds))
    assert again[:] == ds[:]
    assert again.fingerprint == ds.fingerprint
    whole, source_alone = len(pickle.dumps(Dataset(source))), len(pickle.dumps(source))
    assert whole < source_alone + 300


def test_it_tells_what_its_source_tells(source):
    ds = Dataset(source)
    assert ds.source is source
    assert ds.manifest is source.manifest
    assert ds.fields == source.fields
    assert ds.default_shuffle == "window"
    assert ds.fingerprint == source.manifest.fingerprint
    assert ds.shard_sizes.tolist() == SIZES
    assert [ds.url_of(i) for i in (0, 4, 5, 31)] == [
        f"memory://set/00{shard}.mem" for shard in (0, 0, 2, 3)
    ]
    assert ds.describe(5) == "sample 5 of memory://set/002.mem"
    assert source.reads == []


def test_the_fingerprint_is_about_samples_not_what_is_done_with_them(source):
    ds = Dataset(source)
    assert ds.select("cls").decode(cls=int).map(dict).fingerprint == ds.fingerprint
