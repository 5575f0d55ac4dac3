"""Any map-style dataset as a source."""

import random
from collections import ChainMap, UserDict, UserString, namedtuple
from mmap import mmap
from types import MappingProxyType

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.sources.wrap.source import WrapSource
from shardwise.testing.sources import check_source
from tests.support.decoders import InPlace


class Squares:
    """Tuples (i, i * i); item `bad` raises."""

    def __init__(self, num_items=10, *, bad=None):
        self.num_items = num_items
        self.bad = bad
        self.asked = []

    def __len__(self):
        return self.num_items

    def __getitem__(self, i):
        self.asked.append(i)
        if i == self.bad:
            raise RuntimeError("the disk is on fire")
        return i, i * i


class Batched(Squares):
    """Has torch's batched look-up."""

    batches = ()

    def __getitems__(self, indices):
        assert type(indices) is list
        self.batches += (indices,)
        return [self[i] for i in indices]


@pytest.mark.parametrize("kind", [Squares, Batched])
def test_it_keeps_what_a_source_keeps(kind):
    expected = [{"__key__": str(i), "0": i, "1": i * i} for i in range(10)]
    check_source(WrapSource(kind()), expected=expected)
    check_source(WrapSource([{"x": 1}, {"x": None}, {"x": "a"}]))


def test_its_manifest_is_one_shard_with_the_datasets_type():
    source = WrapSource(Squares())
    assert source.default_shuffle == "full"
    assert [(s.url, s.num_samples) for s in source.manifest.shards] == [("wrap:Squares", 10)]
    assert "Squares" in repr(source)


@pytest.mark.parametrize(
    ("items", "fields", "sample"),
    [
        ([(7, "a")], ("0", "1"), {"__key__": "0", "0": 7, "1": "a"}),
        ([[7, "a"]], ("0", "1"), {"__key__": "0", "0": 7, "1": "a"}),
        ([namedtuple("Pair", "x y")(7, "a")], ("0", "1"), {"__key__": "0", "0": 7, "1": "a"}),
        ([{"x": 7, "y": "a"}], ("x", "y"), {"__key__": "0", "x": 7, "y": "a"}),
        ([UserDict(x=7)], ("x",), {"__key__": "0", "x": 7}),
        ([{"__key__": "cat", "x": 7}], ("x",), {"__key__": "cat", "x": 7}),
        ([{"__key__": 31, "x": 7}], ("x",), {"__key__": "31", "x": 7}),
        ([7], ("value",), {"__key__": "0", "value": 7}),
        (["text"], ("value",), {"__key__": "0", "value": "text"}),
        ([b"data"], ("value",), {"__key__": "0", "value": b"data"}),
    ],
)
def test_items_become_samples(items, fields, sample):
    ds = sw.wrap(items)
    assert ds.fields == fields
    assert ds[0] == sample


def test_arrays_and_tensors_are_datasets_of_values():
    ds = sw.wrap(np.arange(6).reshape(3, 2))
    assert ds[2]["value"].tolist() == [4, 5]
    pairs = torch.utils.data.TensorDataset(torch.arange(3), torch.arange(3) * 2)
    assert [(int(s["0"]), int(s["1"])) for s in sw.wrap(pairs)] == [(0, 0), (1, 2), (2, 4)]


def test_the_order_is_the_datasets_and_items_are_asked_for_once():
    data = Squares()
    ds = sw.wrap(data)
    assert [sample["1"] for sample in ds.select("1")] == [i * i for i in range(10)]
    # Item 0 twice: for the names of the fields.
    assert data.asked == [0, *range(10)]
    assert ds.load(np.array([3, 9, 3]))["__key__"] == ["3", "9", "3"]


def test_iteration_asks_for_one_item_at_a_time():
    data = Squares()
    samples = iter(sw.wrap(data).select("1"))
    data.asked.clear()
    next(samples)
    assert data.asked == [0]


def test_a_batched_look_up_is_used_where_there_is_one():
    data = Batched()
    assert [s["1"] for s in sw.wrap(data)[[2, 5]]] == [4, 25]
    assert data.batches == ([2, 5],)


def test_a_batched_look_up_that_returns_too_few_is_an_error():
    class Short(Batched):
        def __getitems__(self, indices):
            return super().__getitems__(indices[1:])

    with pytest.raises(DataError, match="returned 1 items for 2 indices"):
        sw.wrap(Short())[[2, 5]]


@pytest.mark.parametrize("kind", [Squares, Batched])
def test_an_item_that_raises_is_named(kind):
    ds = sw.wrap(kind(bad=5)).subset([2, 5])
    for read in (lambda: ds[1], lambda: ds.load(np.arange(2))):
        with pytest.raises(
            DataError, match=rf"{kind.__name__}\[5\] raised RuntimeError: the disk"
        ) as caught:
            read()
        error = caught.value
        assert isinstance(error.__cause__, RuntimeError)
        assert (error.url, error.key, error.index) == (f"wrap:{kind.__name__}", "5", 1)


def test_an_item_whose_exception_has_no_message_is_named_and_skipped():
    class Unspeakable(Exception):
        def __str__(self):
            raise TypeError("no words")

    class Bad(Squares):
        def __getitem__(self, index):
            if index == 5:
                raise Unspeakable
            return super().__getitem__(index)

    with pytest.raises(DataError, match=r"Bad\[5\] raised Unspeakable: <its message can't be had"):
        sw.wrap(Bad())[5]
    options = {"rank": 0, "world_size": 1, "output": "numpy", "executor": "inline"}
    loader = sw.DataLoader(sw.wrap(Bad()), 4, on_error="skip", **options)
    assert 5 not in [i for batch in loader for i in batch["__index__"]]
    assert loader.stats()["skipped"] == 1


def test_columns_are_the_objects_themselves():
    items = [{"x": object()} for _ in range(3)]
    columns = sw.wrap(items).load(np.array([2, 0]))
    assert columns["x"][0] is items[2]["x"]
    assert columns["x"][1] is items[0]["x"]


def test_decoders_get_the_values():
    ds = sw.wrap([("7", b"ab"), ("8", b"cd")]).decode(**{"0": int, "1": bytes.upper})
    assert ds[1] == {"__key__": "1", "0": 8, "1": b"CD"}
    assert ds.load(np.arange(2))["0"] == [7, 8]
    assert sw.wrap([b"7"]).decode(value=InPlace()).layout() == {}
    with pytest.raises(DataError, match="int raised ValueError: invalid literal") as caught:
        sw.wrap(["7", "x"]).decode(value=int)[1]
    assert caught.value.field == "value"
    with pytest.raises(ValueError, match="'0', '1'"):
        ds.decode()


def test_none_is_a_field_that_the_sample_lacks():
    ds = sw.wrap([{"x": 1}, {"x": None}, {}])
    assert list(ds) == [
        {"__key__": "0", "x": 1},
        {"__key__": "1"},
        {"__key__": "2"},
    ]
    assert ds.load(np.arange(3))["x"] == [1, None, None]
    with pytest.raises(DataError, match="no field 'x'"):
        ds.select("x").load(np.arange(3))


def test_a_field_that_item_0_lacks_is_never_dropped_in_silence():
    ds = sw.wrap([{"x": 1}, {"x": 2, "y": 3}])
    with pytest.raises(
        DataError, match=r"a field 'y', which item 0.*select\(\) some of 'x'"
    ) as caught:
        ds[1]
    assert (caught.value.field, caught.value.index) == ("y", 1)
    assert ds.select("x")[1] == {"__key__": "1", "x": 2}


def test_names_of_fields_are_strings():
    with pytest.raises(DataError, match="a field 3"):
        sw.wrap([{3: 4}]).fields


def test_an_empty_dataset_has_no_fields():
    ds = sw.wrap([])
    assert (len(ds), ds.fields, list(ds)) == (0, (), [])
    assert ds.load(np.empty(0, dtype=np.int64)) == {"__key__": []}


@pytest.mark.parametrize(
    ("data", "lacks"), [((i for i in range(3)), "__len__"), ({1, 2}, "__getitem__")]
)
def test_what_has_no_length_or_no_items_is_refused(data, lacks):
    with pytest.raises(TypeError, match=lacks):
        sw.wrap(data)


class Flipped(torch.utils.data.Dataset):
    """Arrays that are flipped by a coin, of a generator of its own or of the global ones."""

    def __init__(self, coin):
        self.coin = coin

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return (np.arange(3) + i)[:: -1 if self.coin() < 0.5 else 1].copy(), i


COINS = {
    "numpy": np.random.rand,
    "python": random.random,
    "torch": lambda: torch.rand(1).item(),
}


def splits(seed):
    data = [{"x": np.full(3, i), "y": f"text {i}"} for i in range(100)]
    generator = torch.Generator().manual_seed(seed)
    return torch.utils.data.random_split(data, [50, 50], generator)


def with_middle(value):
    """The first and the last of three lists of arrays are equal."""
    return [[np.zeros(3)], [np.full(3, value)], [np.ones(3)]]


DATASETS = {
    "types": lambda: [Squares(3), Batched(3), [(0, 0), (1, 1), (2, 4)]],
    "lengths": lambda: [Squares(3), Squares(4)],
    "splits": lambda: [*splits(0), *splits(1)],
    "middles": lambda: [with_middle(1), with_middle(1.5), with_middle(np.float32(1))],
    "values": lambda: [[{"a": v}] for v in (1, 1.0, "1", b"1", True, None, [1], (1,), {"b": 1})],
    "concat": lambda: [
        torch.utils.data.ConcatDataset([splits(seed)[0], splits(0)[1]]) for seed in (0, 1)
    ],
    "stack": lambda: [
        torch.utils.data.StackDataset(**{name: splits(seed)[0]})
        for name, seed in (("a", 0), ("a", 1), ("b", 0))
    ],
    "ours": lambda: [sw.wrap(Squares(9)).subset(taken) for taken in ([1, 3], [1, 4])],
    "tensors": lambda: [
        torch.utils.data.TensorDataset(tensor)
        for i in range(2)
        for tensor in (
            torch.arange(3) + i,
            torch.full((3,), float(i), requires_grad=True),
            torch.full((3, 1), i, dtype=torch.bfloat16),
        )
    ],
    "pictures": lambda: [[Image.new("RGB", (4, 4), (i, 0, 0)).resize((4, 4))] for i in (0, 200)],
}


@pytest.mark.parametrize("name", DATASETS)
def test_the_fingerprint_tells_datasets_apart_and_is_the_same_each_time(name):
    words = [sw.wrap(data).fingerprint for data in DATASETS[name]()]
    assert len(set(words)) == len(words)
    assert words == [sw.wrap(data).fingerprint for data in DATASETS[name]()]


@pytest.mark.parametrize("name", COINS)
def test_random_augmentation_does_not_change_the_fingerprint_nor_the_programs_generators(name):
    draws = lambda: (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: E731
    for seed in range(6):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        found = sw.wrap(Flipped(COINS[name])).fingerprint
        drawn = draws()
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert drawn == draws()
        assert found == sw.wrap(Flipped(COINS[name])).fingerprint


def test_a_dataset_that_draws_by_itself_or_raises_has_its_type_and_length():
    words = {sw.wrap(Flipped(np.random.default_rng(seed).random)).fingerprint for seed in range(10)}
    assert len(words) == 1
    assert sw.wrap(Squares(bad=9)).fingerprint == sw.wrap(Squares(bad=0)).fingerprint
    assert sw.wrap(Squares(bad=9)).fingerprint != sw.wrap(Squares(11, bad=9)).fingerprint


def test_the_content_is_looked_at_only_when_a_state_is_asked_for():
    data = Squares(10)
    loader = sw.DataLoader(sw.wrap(data).select("0"), batch_size=5, rank=0, world_size=1)
    assert data.asked == [0]
    loader.state_dict()
    assert {*data.asked} == {0, 5, 9}


def write_into(sample):
    sample["a"] += 1000
    sample["t"] += 1
    sample["l"].append(1)
    sample["d"]["b"][:] = 7
    return {name: sample[name] for name in "at"} | {"l": len(sample["l"])}


@pytest.mark.parametrize(
    "options",
    [
        {"executor": "inline"},
        {"executor": "threads", "num_threads": 2},
        # One worker, so that it meets each sample again in the next epoch; it imports torch.
        pytest.param(
            {"executor": "processes", "num_workers": 1, "num_threads": 1}, marks=pytest.mark.long
        ),
    ],
)
def test_a_map_that_writes_into_arrays_gives_the_same_in_every_epoch(options):
    items = [
        {"a": np.full(3, i), "t": torch.full((2,), i), "l": [], "d": {"b": np.zeros(2)}}
        for i in range(12)
    ]
    ds = sw.wrap(items).map(write_into)
    with sw.DataLoader(ds, batch_size=6, rank=0, world_size=1, **options) as loader:
        for _ in range(3):
            for batch in loader:
                ids = batch["__index__"]
                assert torch.equal(batch["a"][:, 0], ids + 1000)
                assert torch.equal(batch["t"][:, 0], ids + 1)
                assert batch["l"].tolist() == [1] * 6
    assert items[5]["a"].tolist() == [5, 5, 5]
    assert items[5]["l"] == []
    assert items[5]["d"]["b"].tolist() == [0, 0]
    decoded = sw.wrap(items).decode(a=lambda a: a.__iadd__(1))
    assert [decoded[3]["a"].tolist() for _ in range(2)] == [[4, 4, 4]] * 2
    assert sw.wrap(items)[3]["a"] is items[3]["a"]


@pytest.mark.extension
@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        (pa.table({"x": [1, 2]}), r"wrap\(table\.to_pylist\(\)\)"),
        (pd.DataFrame({"x": [1, 2]}), r"wrap\(df\.to_dict\('records'\)\)"),
    ],
)
def test_a_table_in_memory_is_refused_with_the_way_out(table, remedy):
    with pytest.raises(TypeError, match=remedy):
        sw.wrap(table)
    with pytest.raises(TypeError, match=r"urls is a .* table in memory.*sw\.wrap"):
        sw.parquet(table)


@pytest.mark.parametrize(
    "data",
    [UserDict({0: 1}), MappingProxyType({"a": 1}), ChainMap({}), UserString("ab"), mmap(-1, 9)],
)
def test_mappings_texts_and_bytes_of_any_class_are_refused(data):
    with pytest.raises(TypeError, match=r"wrap\(\) needs a dataset.* give a list"):
        sw.wrap(data)


def test_keys_of_bytes_are_texts_and_a_null_is_refused():
    assert [s["__key__"] for s in sw.wrap([{"__key__": b"a"}, {"__key__": 7}])] == ["a", "7"]
    for key, why in ((None, "a __key__ is null"), (b"\xff", "can't decode byte 0xff")):
        with pytest.raises(sw.DataError, match=why):
            sw.wrap([{"__key__": key}])[0]


@pytest.mark.extension
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_lances_own_map_style_dataset_is_read_and_an_open_table_sent_to_its_own_reader(tmp_path):
    import lance
    from lance.torch.data import SafeLanceDataset

    data = pa.table({"id": range(30), "data": [bytes([i]) for i in range(30)]})
    table = lance.write_dataset(data, str(tmp_path / "t.lance"), max_rows_per_file=7)
    with pytest.raises(TypeError, match=r"give it to sw\.lance"):
        sw.wrap(table)
    assert len(sw.lance(table)) == 30
    ds = sw.wrap(SafeLanceDataset(str(tmp_path / "t.lance")))
    assert ds[3] == {"__key__": "3", "id": 3, "data": bytes([3])}
    assert [sample["id"] for sample in ds[[7, 3, 29]]] == [7, 3, 29]
