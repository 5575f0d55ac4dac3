"""What a loader takes: any data with items, torch's names, samplers, tuples of fields."""

from __future__ import annotations

import dataclasses
import inspect
import re

import datasets
import numpy as np
import pytest
import torch

import shardwise as sw
from shardwise.base.errors import DataError, StateError
from shardwise.dataset import Dataset
from shardwise.loader.arguments import TORCH_ARGUMENTS, TorchArguments
from shardwise.loader.plan_options import PlanArguments, PlanOptions
from shardwise.plan import WindowShape
from shardwise.testing import assert_batches_equal, check_resume
from tests.support.memory_source import MemorySource, numbered_samples

SHARDS = [6, 0, 10, 24]
PAIRS = [(np.full(3, i, np.float32), i) for i in range(40)]


def make(data=None, *args, **options):
    data = numbered() if data is None else data
    given = {"output": "numpy", "rank": 0, "world_size": 1, "num_threads": 0, **options}
    if not args:
        given.setdefault("batch_size", 8)
    return sw.DataLoader(data, *args, **given)


def numbered():
    return Dataset(MemorySource(numbered_samples(40), SHARDS)).select("cls", "txt")


def ids(loader):
    return [batch["__index__"].tolist() for batch in loader]


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index, index * index


class Own:
    """A dataset by the protocol `shardwise.sources.samples.Samples`, but for its newest option."""

    def __init__(self, data):
        self.data = data

    def __getattr__(self, name):
        return getattr(self.data, name)

    def __len__(self):
        return len(self.data)

    def layout(self):
        return self.data.layout()

    def load(self, ids, *, epoch=0, seed=0, out=None, stats=None):
        if 3 in ids:
            raise DataError("damaged", index=3)
        return self.data.load(ids, epoch=epoch, seed=seed, out=out, stats=stats)


# Data.


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_dataset_of_the_users_own_is_loaded_by_its_own_load(on_error):
    def noisy(sample, rng):
        return {**sample, "noise": rng.random()}

    whole = numbered().map(noisy)
    found = {}
    for epoch in range(2):
        loader = make(Own(whole), shuffle="full", seed=7, on_error=on_error)
        loader.set_epoch(epoch)
        for batch in loader:
            found |= dict(zip(batch["__index__"].tolist(), batch["noise"].tolist(), strict=True))
        expected = whole.load(np.array(list(found)), epoch=epoch, seed=7)["noise"]
        assert list(found.values()) == expected
        assert sorted(found) == [i for i in range(40) if i != 3]
        assert loader.stats()["skipped" if on_error == "skip" else "replaced"] == 1
        found.clear()


@pytest.mark.extension
@pytest.mark.parametrize(
    ("data", "field"),
    [
        (PAIRS, "1"),
        (Squares(), "0"),
        (torch.utils.data.Subset(Squares(), range(40)), "0"),
        (datasets.Dataset.from_dict({"n": list(range(40))}), "n"),
        (np.arange(40), "value"),
        (range(40), "value"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_data_with_a_length_and_items_is_wrapped(data, field):
    loader = make(data, 8, shuffle=True, output="torch")
    batches = list(loader)
    assert [len(batch[field]) for batch in batches] == [8] * 5
    assert sorted(torch.cat([batch[field] for batch in batches]).tolist()) == list(range(40))
    assert loader.dataset.fingerprint == sw.wrap(data).fingerprint


def endless():
    yield 1


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([1])

    def __len__(self):
        return 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("x.tar", r"use sw\.DataLoader\(sw\.tar\('x\.tar'\)\)"),
        (b"x.tar", r"sw\.tar\('x\.tar'\)"),
        ("data/train.parquet", r"sw\.parquet\('data/train\.parquet'\)"),
        ("s3://key:secret@bucket/x.tar?sig=secret", r"sw\.tar\(url\)"),
        ("somewhere", r"sw\.tar\('somewhere'\), sw\.parquet"),
        (["a.tar", "b.tar"], r"sw\.tar\(\[\.\.\.\]\)"),
        ([numbered(), numbered()], r"sw\.concat"),
        ({"train": PAIRS, "test": PAIRS}, "'train', 'test' is no dataset.*choose one"),
        (endless(), r"sw\.TarWriter"),
        (Stream(), r"sw\.TarWriter"),
        (3, r"sw\.DataLoader\(int\): no dataset: give"),
    ],
    ids=[
        "path",
        "bytes",
        "parquet",
        "url",
        "name",
        "paths",
        "datasets",
        "splits",
        "generator",
        "stream",
        "number",
    ],
)
def test_what_is_no_dataset_is_refused_with_what_to_write(data, message):
    with pytest.raises(TypeError, match=message) as caught:
        make(data)
    assert "secret" not in str(caught.value)


# torch's names.


def test_batch_size_and_shuffle_may_stand_second_and_third():
    assert ids(make(None, 8, True)) == ids(make(batch_size=8, shuffle=True)) != ids(make(None, 8))


@pytest.mark.parametrize(
    ("torchs", "ours"),
    [
        ({"drop_last": True}, {"remainder": "drop"}),
        ({"drop_last": False}, {"remainder": "uneven"}),
        ({"drop_last": False, "remainder": "pad"}, {"remainder": "pad"}),
        ({"collate_fn": len}, {"collate": len}),
        ({"collate_fn": None, "prefetch_factor": None}, {}),
        ({"persistent_workers": True, "in_order": True}, {}),
        ({"multiprocessing_context": "spawn", "worker_init_fn": None, "generator": None}, {}),
        ({"multiprocessing_context": torch.multiprocessing.get_context("spawn")}, {}),
        ({"batch_sampler": None, "pin_memory_device": ""}, {}),
    ],
)
def test_torchs_names_mean_the_same(torchs, ours):
    given, expected = make(batch_size=9, **torchs), make(batch_size=9, **ours)
    assert len(given) == len(expected)
    for one, other in zip(given, expected, strict=True):
        if isinstance(one, dict):
            assert_batches_equal([one], [other])
        else:
            assert one == other


def test_torchs_defaults_are_taken():
    torchs = inspect.signature(torch.utils.data.DataLoader).parameters
    defaults = {p.name: p.default for p in torchs.values() if p.default is not p.empty}
    assert defaults["timeout"] == 0
    assert ids(make(**defaults, num_threads=None)) == ids(make(batch_size=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sampler": [[1]]}, "batch_size= with sampler="),
        ({"worker_init_fn": print}, r"ds\.map\(fn\) with fn\(sample, rng\)"),
        ({"generator": torch.Generator()}, "use seed= instead"),
        ({"multiprocessing_context": "fork"}, "fresh interpreters"),
        ({"in_order": False}, "There is one order"),
        ({"pin_memory_device": "cuda"}, "use device= instead"),
        ({"drop_last": True, "remainder": "pad"}, "contradict"),
        ({"drop_last": False, "remainder": "drop"}, "contradict"),
        ({"collate": len, "collate_fn": len}, "same argument"),
    ],
)
def test_torchs_names_that_mean_something_else_are_refused_with_ours(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("num_worker", "num_workers="), ("droplast", "drop_last="), ("batchsize", "batch_size=")],
)
def test_an_unknown_name_is_told_with_the_ones_like_it(name, meant):
    with pytest.raises(TypeError, match=f"no argument {name}=3; did you mean {meant}"):
        make(**{name: 3})


def test_every_argument_of_torchs_loader_is_known_also_to_type_checkers():
    assert set(TORCH_ARGUMENTS) == set(TorchArguments.__annotations__)
    torchs = set(inspect.signature(torch.utils.data.DataLoader).parameters)
    ours = set(inspect.signature(sw.DataLoader).parameters)
    assert torchs - ours == set(TORCH_ARGUMENTS)


# Samplers.


class Backwards:
    num_samples = 40

    def __init__(self, seed=None):
        if seed is not None:
            self.seed = seed

    def indices(self, epoch, positions):
        return (39 - positions + epoch) % 40

    def spec(self):
        return {"sampler": "backwards"}


def test_the_state_of_a_sampler_is_its_spec_and_resumes():
    check_resume(lambda: make(sampler=Backwards(), batch_size=8))
    state = make(sampler=Backwards(), batch_size=8).state_dict()
    assert state["order"] == {"sampler": "backwards"}
    with pytest.raises(StateError, match="sampler: the state has 'backwards'"):
        make(sampler=sw.FullSampler(40), batch_size=8).load_state_dict(state)


def test_the_librarys_samplers_are_what_shuffle_makes():
    shape = WindowShape()
    window = sw.WindowSampler(SHARDS, seed=3, lanes=shape.lanes, window=shape.window)
    for sampler, shuffle in (
        (sw.SequentialSampler(40), False),
        (sw.FullSampler(40, seed=3), "full"),
        (window, "window"),
    ):
        seed = 0 if shuffle is False else 3
        one, other = make(sampler=sampler), make(shuffle=shuffle, seed=seed)
        assert ids(one) == ids(other)
        assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize("options", [{"shuffle": True}, {"seed": 3}, {"epoch_size": 10}])
def test_options_of_the_order_beside_a_sampler_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}=.* the order is the sampler's"):
        make(sampler=sw.FullSampler(40), **options)


def test_a_samplers_seed_keys_the_transforms():
    data = numbered().map(lambda sample, rng: {"n": int(rng.integers(1 << 40))})
    one, same = make(data, sampler=Backwards(seed=7)), make(data, sampler=Backwards(seed=7))
    assert_batches_equal(list(one), list(same))
    other = next(iter(make(data, sampler=Backwards(seed=8))))
    assert next(iter(one))["n"].tolist() != other["n"].tolist()


def test_a_torch_sampler_is_refused_with_what_to_use():
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 40, 40)
    with pytest.raises(TypeError, match=r"WeightedRandomSampler.*draws by your weights"):
        make(sampler=sampler)


# Tuples.


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_batches_are_tuples_of_the_named_fields(output):
    loader = make(PAIRS, 8, as_tuple=("1", "0", "__key__"), output=output, shuffle=True)
    whole = make(PAIRS, 8, output=output, shuffle=True)
    for (label, x, keys), batch in zip(loader, whole, strict=True):
        assert (label == batch["1"]).all()
        assert (x == batch["0"]).all()
        assert keys == batch["__key__"]


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (
            ("jpg", "cls"),
            ValueError,
            "as_tuple names 'jpg': no field 'jpg': the entries of a batch are .*'cls', 'txt'",
        ),
        (("cls", "__valid__"), ValueError, "'__valid__'"),
        ((), ValueError, "batches of nothing"),
        ("cls", TypeError, r"such as \('cls',\)"),
    ],
)
def test_names_that_no_batch_has_are_refused_when_the_loader_is_made(names, error, message):
    with pytest.raises(error, match=message):
        make(as_tuple=names)


def test_names_behind_a_map_are_held_against_the_first_batch():
    data = numbered().map(lambda sample: {"x": 1})
    assert [x.tolist() for (x,) in make(data, 20, as_tuple=("x",))] == [[1] * 20] * 2
    with pytest.raises(
        ValueError, match=r"as_tuple names 'cls': no field 'cls': the entries of a batch are .*'x'"
    ):
        list(make(data, as_tuple=("cls",), batch_size=8))


# A worker imports torch; test_tensor_messages.py has one by default.
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_collate_of_torchs_gets_the_tuples_that_it_expects(num_workers):
    options = {"num_workers": num_workers, "num_threads": None, "output": "torch"}
    collate = torch.utils.data.default_collate
    with make(PAIRS, 8, as_tuple=("0", "1"), collate_fn=collate, **options) as loader:
        for (x, labels), at in zip(loader, range(0, 40, 8), strict=True):
            assert labels.tolist() == list(range(at, at + 8))
            assert x.shape == (8, 3)


def test_a_collate_that_expects_tuples_is_answered_with_as_tuple():
    with pytest.raises(ValueError, match="too many values to unpack") as caught:
        list(make(PAIRS, 8, collate_fn=lambda samples: [x for x, _ in samples]))
    [note] = caught.value.__notes__
    assert "dicts of '__key__', '0', '1', '__index__'; the loader's as_tuple=" in note


@pytest.mark.parametrize("kind", ["batches", "iterable"])
def test_torchs_own_loader_takes_the_same_samplers(kind):
    data = numbered().decode(cls=int)
    options = {"batch_size": 8, "rank": 0, "world_size": 1, "sampler": Backwards()}
    if kind == "iterable":
        loader = torch.utils.data.DataLoader(
            sw.torch.IterableDataset(data, **options), batch_size=None
        )
    else:
        loader = torch.utils.data.DataLoader(
            data, batch_sampler=sw.torch.BatchSampler(data, **options)
        )
    assert [i for batch in loader for i in batch["cls"].tolist()] == list(range(39, -1, -1))


NUMBERS = [
    "batch_size", "decode_timeout", "epoch_size", "global_batch_size", "hidden", "num_threads",
    "num_workers", "prefetch_bytes", "prefetch_factor", "rank", "seed", "timeout", "world_size",
]  # fmt: skip
OTHERS = [
    "as_tuple", "balance", "batch_by", "collate", "collate_fn", "coverage", "device", "drop_last",
    "exclude", "executor", "group", "halves", "metrics", "on_error", "output",
    "persistent_workers", "pin_memory", "ragged", "remainder", "sampler", "share", "sharding",
    "shuffle",
]  # fmt: skip
OF_EXTENSIONS = {"exclude", "halves", "metrics", "share"}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["3", [3], True], ids=repr)
def test_what_is_no_number_is_refused_by_name_and_value(name, value):
    with pytest.raises(TypeError, match=f"{name}.*{re.escape(repr(value))}"):
        make(**{name: value})


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.extension] * (n in OF_EXTENSIONS)) for n in OTHERS],
)
def test_a_number_where_something_else_belongs_is_refused_by_name(name):
    others = {"group": {"rank": None, "world_size": None}, "device": {"output": "torch"}}
    message = f"{name}(=3.5|=float| must be .*, not a float)"
    with pytest.raises((TypeError, ValueError), match=message):
        make(**{name: 3.5, **others.get(name, {})})


def test_every_argument_that_has_a_type_is_tried_with_another():
    accepted = {name for name, argument in TORCH_ARGUMENTS.items() if argument.accepted}
    named = set(inspect.signature(sw.DataLoader).parameters) | set(TORCH_ARGUMENTS)
    assert {*NUMBERS, *OTHERS} == named - accepted - {"dataset", "torch_names"}


def test_a_set_of_names_is_refused_since_ranks_have_it_in_other_orders():
    with pytest.raises(TypeError, match=r"as_tuple=\{'cls'\}: give a sequence"):
        make(as_tuple={"cls"})


@pytest.mark.parametrize("name", ["timeout", "decode_timeout"])
def test_more_seconds_than_a_float_holds_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name}=1000.*seconds above 0"):
        make(None, 8, **{name: 10**400})


def test_seconds_may_be_a_numpy_float_of_32_bits():
    with make(None, 8, num_threads=2, timeout=np.float32(60)) as loader:
        assert sum(map(len, ids(loader))) == 40


def test_a_number_where_a_directory_belongs_is_refused_by_name():
    with pytest.raises(TypeError, match="coverage must be a str or a path, not a int"):
        make(None, 8, coverage=3)


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"batch_size": 2, "shuffle": True}])
def test_a_loader_in_torchs_loader_says_that_it_is_the_loader_already(options):
    loader = sw.DataLoader([1, 2, 3], batch_size=2)
    with pytest.raises(TypeError, match="it is the loader already"):
        next(iter(torch.utils.data.DataLoader(loader, **options)))


@pytest.mark.parametrize("make", [sw.DataLoader, torch.utils.data.DataLoader])
def test_a_loader_in_a_loader_is_refused_with_what_to_give(make):
    with pytest.raises(TypeError, match=r"that is a loader already: .*\(loader\.dataset"):
        sw.DataLoader(make([1, 2, 3]))


# The options that torch's parts take, too.


@pytest.mark.parametrize("kind", [sw.torch.BatchSampler, sw.torch.IterableDataset])
def test_torchs_parts_show_and_take_the_options_of_the_loader(kind):
    ours = inspect.signature(sw.DataLoader).parameters
    theirs = inspect.signature(kind).parameters
    assert set(PlanArguments.__annotations__) < set(theirs) & set(ours)
    for name in [*PlanArguments.__annotations__, "batch_size", "coverage", "group"]:
        assert theirs[name].default == ours[name].default, name
    with pytest.raises(TypeError, match=r"no argument suffle=True; did you mean shuffle="):
        kind(numbered(), suffle=True)


def test_the_options_of_a_plan_are_arguments_of_all_its_users():
    names = {each.name for each in dataclasses.fields(PlanOptions)}
    assert names == {*PlanArguments.__annotations__, "batch_size"}


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (
            lambda data: sw.DataLoader(data, batch_size=1, rank=0, world_size=1).skip(steps=1),
            "num_steps",
        ),
        (lambda data: sw.DataLoader(data, batch_size=1).load_state_dict(stat={}), "state"),
        (lambda data: data.subset(indicess=[0]), "indices"),
    ],
)
def test_methods_of_one_argument_suggest_it(call, meant):
    with pytest.raises(TypeError, match=f"did you mean {meant}="):
        call(sw.wrap([{"x": 1}]))
