"""Batches on a device: order, state and errors by a copier that only notes what it is asked for.

The device "meta" keeps shapes and no data: with it the whole way through the loader is walked on
any machine. What CUDA itself has to do is tested where there is one.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections import OrderedDict, namedtuple
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.engine.request import Batch
from shardwise.tensors.device import DirectCopier, checked_device, copier_for, look_ahead
from tests.support.memory_source import MemorySource, numbered_samples

Pair = namedtuple("Pair", "image label")

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine"
)


class Notes:
    """A copier that copies nothing and notes what happens when."""

    def __init__(self, *, fails_at=None):
        self.notes = []
        self.fails_at = fails_at

    def prepare(self, data, memory):
        return data

    def begin(self, data):
        self.notes.append(f"begin {data}")
        if data == self.fails_at:
            raise MemoryError(f"no room for {data}")
        return data

    def end(self, begun):
        self.notes.append(f"end {begun}")
        return f"{begun} there"


def made(count, *, fails_at=None, notes=None, is_ready=lambda number: True):
    """Batches 0, 1, ...; the one at `fails_at` raises; closing is noted.

    `is_ready` tells of each whether it can be had without waiting when the one before it was.
    """
    try:
        for number in range(count):
            if number == fails_at:
                raise KeyError(f"batch {number}")
            ready = partial(is_ready, number + 1)
            yield Batch(number, num_rows=1, is_next_ready=ready)
    finally:
        if notes is not None:
            notes.append("closed")


def taken(batches, notes):
    given = []
    for batch in batches:
        notes.append(f"use {batch.data}")
        given.append(batch.data)
    return given


def dataset(num_samples=20, *, damaged=()):
    source = MemorySource(numbered_samples(num_samples))
    for index in damaged:
        source.fail_at(index)
    return sw.Dataset(source).decode(cls=int, bin=sw.array("<i8", (1,)), txt=str)


def loader(data=None, **options):
    given = {"batch_size": 4, "rank": 0, "world_size": 1, "num_threads": 0, "device": "meta"}
    return sw.DataLoader(dataset() if data is None else data, **{**given, **options})


# Looking ahead.


def test_the_copy_of_the_next_batch_begins_before_a_batch_is_handed_out():
    copier = Notes()
    taken(look_ahead(made(3), copier), copier.notes)
    assert copier.notes == [
        "begin 0", "begin 1",
        "end 0", "use 0 there", "begin 2",
        "end 1", "use 1 there",
        "end 2", "use 2 there",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_every_batch_comes_once_and_in_order(count):
    given = [batch.data for batch in look_ahead(made(count), Notes())]
    assert given == [f"{number} there" for number in range(count)]


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.one_of(st.none(), st.integers(0, 12)))
def test_a_batch_comes_once_in_order_and_waits_only_for_one_that_is_ready(ready, fails_at):
    copier = Notes()
    batches = made(len(ready), fails_at=fails_at, is_ready=lambda n: n < len(ready) and ready[n])
    expected = len(ready) if fails_at is None else min(fails_at, len(ready))
    fails = fails_at is not None and fails_at < len(ready)
    with pytest.raises(KeyError) if fails else nullcontext():
        taken(look_ahead(batches, copier), copier.notes)
    notes = copier.notes
    assert [n for n in notes if n[:3] == "use"] == [f"use {k} there" for k in range(expected)]
    for number in range(expected - 1):
        is_ahead = notes.index(f"begin {number + 1}") < notes.index(f"use {number} there")
        assert is_ahead == ready[number + 1]


def test_a_batch_whose_follower_may_not_be_ready_is_yielded_at_once():
    copier = Notes()
    taken(look_ahead((Batch(number, num_rows=1) for number in range(2)), copier), copier.notes)
    assert copier.notes == ["begin 0", "end 0", "use 0 there", "begin 1", "end 1", "use 1 there"]


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_the_error_of_a_batch_comes_after_the_batch_before_it(fails_at):
    copier = Notes()
    with pytest.raises(KeyError, match=f"batch {fails_at}"):
        taken(look_ahead(made(5, fails_at=fails_at), copier), copier.notes)
    used = [note for note in copier.notes if note.startswith("use")]
    assert used == [f"use {number} there" for number in range(fails_at)]


def test_a_copy_that_fails_is_an_error_in_its_place_and_ends_what_is_under_way():
    copier = Notes(fails_at=2)
    with pytest.raises(MemoryError, match="no room for 2"):
        taken(look_ahead(made(5, notes=copier.notes), copier), copier.notes)
    assert copier.notes[-3:] == ["end 1", "use 1 there", "closed"]


def test_an_abandoned_iterator_ends_what_is_under_way():
    copier = Notes()
    # Held here, so that nothing but being closed ends it.
    engine = made(5, notes=copier.notes)
    batches = look_ahead(engine, copier)
    assert next(batches).data == "0 there"
    batches.close()
    assert copier.notes == ["begin 0", "begin 1", "end 0", "closed"]


def test_the_memory_of_a_batch_goes_back_as_soon_as_its_copy_was_begun():
    batches = list(made(3))
    ahead = look_ahead((batch for batch in batches), Notes())
    next(ahead)
    assert [batch.data for batch in batches] == ["0 there", None, 2]


# Through the loader.


def test_all_tensors_of_a_batch_are_on_the_device_and_lists_stay_lists():
    [batch, *rest] = list(loader(remainder="pad", batch_size=8))
    assert {name: batch[name].device.type for name in ("cls", "bin", "__index__", "__valid__")} == {
        "cls": "meta", "bin": "meta", "__index__": "meta", "__valid__": "meta",
    }  # fmt: skip
    assert (batch["bin"].shape, batch["bin"].dtype) == ((8, 1), torch.int64)
    assert batch["txt"] == [f"text {i}" for i in range(8)]
    assert batch["__key__"] == [f"key-{i:05d}" for i in range(8)]
    assert len(rest) == 2


@pytest.mark.parametrize(
    "options",
    [{}, {"num_threads": 2}, {"num_threads": None, "num_workers": 1}],
    ids=["inline", "threads", "processes"],
)
def test_the_batches_are_those_without_a_device(options):
    with loader(shuffle="full", **options) as moved, loader(shuffle="full", device=None) as plain:
        for epoch in range(2):
            here, there = list(plain), list(moved)
            assert [b["__key__"] for b in there] == [b["__key__"] for b in here], f"epoch {epoch}"
            assert [list(b) for b in there] == [list(b) for b in here]


def test_the_batch_that_was_copied_ahead_does_not_count_as_handed_out():
    plain, ahead = loader(device=None), loader()
    assert ahead.state_dict() == plain.state_dict()
    for _, _ in zip(plain, ahead, strict=True):
        assert ahead.state_dict() == plain.state_dict()
        assert ahead.stats()["batches"] == plain.stats()["batches"]
        assert ahead.stats()["samples"] == plain.stats()["samples"]
    assert ahead.state_dict() == plain.state_dict()
    assert ahead.epoch == 1


@pytest.mark.parametrize("num_taken", range(6))
def test_a_loader_resumed_from_its_state_goes_on_behind_the_last_batch(num_taken):
    first = loader(shuffle="full")
    batches = iter(first)
    given = [next(batches)["__key__"] for _ in range(num_taken)]
    state = json.loads(json.dumps(first.state_dict()))
    batches.close()
    second = loader(shuffle="full")
    second.load_state_dict(state)
    given += [batch["__key__"] for batch in second] if num_taken < 5 else []
    assert given == [b["__key__"] for b in loader(shuffle="full", device=None)]


def test_tensors_in_what_the_users_collate_returns_are_moved():
    def collate(samples):
        ids = torch.tensor([sample["__index__"] for sample in samples])
        ragged = [torch.zeros(int(i)) for i in ids]
        return {"nested": {"ids": ids, "name": "x"}, "ragged": ragged}, Pair(ids, 3), (ids,), "text"

    [(first, pair, single, text), *_] = list(loader(collate=collate))
    assert first["nested"]["ids"].device.type == "meta"
    assert first["nested"]["name"] == "x"
    assert [(t.device.type, len(t)) for t in first["ragged"]] == [("meta", i) for i in range(4)]
    assert isinstance(pair, Pair)
    assert (pair.image.device.type, pair.label) == ("meta", 3)
    assert single[0].device.type == "meta"
    assert text == "text"


def test_a_single_tensor_that_the_users_collate_returns_is_moved():
    [batch, *_] = list(loader(collate=lambda samples: torch.zeros(len(samples))))
    assert batch.device.type == "meta"


def test_containers_keep_their_type_and_order_and_what_holds_no_tensor_its_identity():
    documents = [{"a": [1, 2]}, {"a": None}]
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2), torch.zeros(1)])
    given = OrderedDict(b=torch.zeros(1), a=documents)
    moved = DirectCopier(torch.device("meta")).begin((given, packed))[0]
    assert type(moved) is OrderedDict
    assert list(moved) == ["b", "a"]
    assert moved["a"] is documents
    assert given["b"].device.type == "cpu", "the user's own dict was changed"
    # It has a way of its own to be moved: its batch_sizes must stay in host memory.
    there = DirectCopier(torch.device("meta")).begin([packed])[0]
    assert (there.data.device.type, there.batch_sizes.device.type) == ("meta", "cpu")


def test_on_the_cpu_a_batch_is_as_without_a_device_and_nothing_is_asked_for_ahead():
    taken_ids = []
    data = dataset().map(lambda sample: taken_ids.append(sample["cls"]) or sample)
    batches = iter(loader(data, device="cpu"))
    batch = next(batches)
    batches.close()
    assert taken_ids == [0, 1, 2, 3]
    assert batch["cls"].tolist() == [0, 1, 2, 3]
    assert batch["cls"].device == torch.device("cpu")


@pytest.mark.parametrize("device", ["gpu", "cuda:-3", 1.5, "cuda:99"])
def test_a_device_that_is_not_there_is_refused_with_its_value(device):
    with pytest.raises(ValueError, match=f"device={device!r}"):
        loader(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0)])
def test_without_cuda_the_error_says_what_torch_sees(device):
    with pytest.raises(ValueError, match=r"sees 0 CUDA devices.*device='cpu'"):
        loader(device=device)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has such a device")
def test_a_device_that_torch_was_built_without_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"device='mps' can't be used here: [^\n]{,120}$"):
        loader(device="mps")


def test_a_device_is_for_tensors():
    with pytest.raises(ValueError, match=r"device='cpu'.*output='numpy'"):
        loader(device="cpu", output="numpy")


def test_a_torch_device_is_taken_as_it_is():
    assert checked_device(torch.device("meta")) == torch.device("meta")
    assert loader(device=torch.device("cpu")).device == torch.device("cpu")


class Locked(DirectCopier):
    """Does not pickle, as a CUDA stream that belongs to its process."""

    def __init__(self, device):
        super().__init__(device)
        self.lock = threading.Lock()


def test_a_loader_pickles_with_its_device_and_without_what_copies(monkeypatch):
    monkeypatch.setattr("shardwise.tensors.device.copier_for", Locked)
    first = loader()
    batches = iter(first)
    next(batches)
    second = pickle.loads(pickle.dumps(first))
    batches.close()
    assert second.device == torch.device("meta")
    assert [b["__key__"][0][-2:] for b in second] == ["04", "08", "12", "16"]


# What is asked of CUDA, without one.


class Traced(torch.Tensor):
    """A tensor that notes how it is moved, and stays where it is."""

    notes: list[str]

    def pin_memory(self):
        self.notes.append("pin")
        return self

    def to(self, device, *, non_blocking=False):
        self.notes.append(f"copy to {device}{' at once' * non_blocking}")
        copied = self.clone().as_subclass(Traced)
        copied.notes = self.notes
        return copied

    def record_stream(self, stream):
        self.notes.append(f"kept for {stream.name}")


class TracedStream:
    """Stands for a CUDA stream, and for the `with` around its use."""

    def __init__(self, notes, name):
        self.notes, self.name = notes, name

    def __enter__(self):
        self.notes.append(f"into {self.name}")

    def __exit__(self, *exc):
        self.notes.append(f"out of {self.name}")

    def record_event(self):
        self.notes.append(f"event of {self.name}")
        return SimpleNamespace(query=lambda: False, synchronize=lambda: None)

    def wait_event(self, event):
        self.notes.append(f"{self.name} waits for the event")


def test_copies_go_from_pinned_memory_on_a_stream_for_which_the_consumers_stream_waits(monkeypatch):
    notes = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: TracedStream(notes, f"side {device}"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: TracedStream(notes, "main"))
    tensors = [torch.zeros(2).as_subclass(Traced), torch.ones(1).as_subclass(Traced)]
    for tensor in tensors:
        tensor.notes = notes
    copier = copier_for(torch.device("cuda"))
    prepared = copier.prepare([*tensors, "text"], None)
    assert notes == ["pin", "pin"]
    notes.clear()
    begun = copier.begin(prepared)
    assert notes == [
        "into side cuda:3",
        "copy to cuda:3 at once",
        "copy to cuda:3 at once",
        "event of side cuda:3",
        "out of side cuda:3",
    ]  # fmt: skip
    notes.clear()
    data = copier.end(begun)
    assert notes == ["main waits for the event", "kept for main", "kept for main"]
    assert data[2] == "text"
    assert [t.tolist() for t in data[:2]] == [[0, 0], [1]]
    assert data[0] is not tensors[0]


# CUDA itself.


def on_cuda(num_samples=256, **options):
    """Batches of 1 MiB rows, whose every entry is the sample's id."""

    def wide(sample):
        return {"wide": np.full(1 << 18, sample["value"], dtype=np.float32)}

    return loader(sw.wrap(range(num_samples)).map(wide), device="cuda", num_threads=2, **options)


@needs_cuda
def test_batches_on_cuda_are_right_while_the_consumer_is_slow_and_lets_go_of_them_early():
    weight = torch.randn(2048, 2048, device="cuda")
    sums = []
    for batch in on_cuda():
        # Kernels that keep the device busy stand before the one that reads the batch: its memory
        # must neither be read before the copy is done nor written anew before this kernel is.
        for _ in range(20):
            weight = torch.nn.functional.normalize(weight @ weight)
        sums.append((batch["wide"].amin(1), batch["wide"].amax(1), batch["__index__"]))
        del batch
    torch.cuda.synchronize()
    seen = [int(i) for _, _, ids in sums for i in ids]
    assert seen == list(range(256))
    for low, high, ids in sums:
        assert low.tolist() == high.tolist() == ids.tolist()


@needs_cuda
def test_a_consumer_on_a_stream_of_its_own_waits_for_the_copy_too():
    with torch.cuda.stream(torch.cuda.Stream()):
        for batch in on_cuda(64):
            assert (batch["wide"].mean(1) == batch["__index__"]).all()


@needs_cuda
def test_iterators_that_are_given_up_leave_the_device_usable():
    ahead = on_cuda(64)
    for _ in range(20):
        next(iter(ahead))
    assert sum(len(batch["__key__"]) for batch in ahead) == 64
    torch.cuda.synchronize()


@needs_cuda
def test_the_copier_of_cuda_goes_to_the_current_device_and_stays_there():
    copier = copier_for(torch.device("cuda"))
    data = copier.prepare({"x": torch.arange(3), "name": ["a"]}, None)
    begun = copier.begin(data)
    there = copier.end(begun)["x"]
    assert there.device == torch.device("cuda", torch.cuda.current_device())
    assert there.tolist() == [0, 1, 2]
