"""Batches of torch's workers in memory that is used again: equal, never overwritten, not leaked."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from shardwise.torch import shared_batches as parcels
from shardwise.torch.shared_batches import SharedMemoryCollate

ROW = 64 << 10
METHODS = ["fork", "spawn", "forkserver"]


class Rows(Dataset):
    """Row i: 64 kB of the byte i, and i."""

    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return np.full(ROW, i % 251, np.uint8), i


def stack(rows):
    """A batch in memory that is not shared, unlike that of torch's default_collate."""
    arrays, numbers = zip(*rows, strict=True)
    return torch.from_numpy(np.stack(arrays)), torch.tensor(numbers)


def loader(dataset=None, *, method="fork", workers=2, collate=stack, **options):
    return DataLoader(
        Rows() if dataset is None else dataset,
        batch_size=4,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        collate_fn=SharedMemoryCollate(collate),
        **options,
    )


def assert_right(batches, length=40):
    numbers = [int(i) for _, each in batches for i in each]
    assert numbers == list(range(length))
    for rows, each in batches:
        assert rows.dtype == torch.uint8
        assert (rows == each[:, None] % 251).all()


def num_mapped():
    """Anonymous files that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:shardwise" in line for line in maps)


def num_open(pid):
    """Anonymous files that a process has open."""
    count = 0
    for file in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += "memfd:shardwise" in os.readlink(file.path)
    return count


def settled(count):
    """Whether what `count` gives comes to 0 once all garbage is collected."""
    gc.collect()
    return count() == 0


@pytest.mark.parametrize(
    "method",
    [METHODS[0], *(pytest.param(method, marks=pytest.mark.long) for method in METHODS[1:])],
)
def test_batches_that_are_kept_are_not_overwritten(method):
    assert_right(list(loader(method=method)))
    assert settled(num_mapped)


def test_a_row_keeps_its_whole_batch():
    rows = [batch[0][1] for batch in loader()]
    gc.collect()
    assert [int(row[0]) for row in rows] == list(range(1, 40, 4))
    assert all((row == row[0]).all() for row in rows)
    assert num_mapped() == 10


def test_memory_is_used_again_as_soon_as_a_batch_is_gone():
    worker_files = set()
    gc.collect()
    # A forked worker has the files of earlier tests that are still open here.
    inherited = num_open(os.getpid())
    made = iter(loader(Rows(400), workers=1))
    (worker,) = (w.pid for w in made._workers)
    for _, each in made:
        assert num_mapped() <= 2
        worker_files.add(num_open(worker) - inherited)
        last = int(each[-1])
    assert last == 399
    # Two that are read ahead, one in use, one being filled: each twice, and once more while sent.
    assert max(worker_files) <= 12


def test_workers_that_live_on_use_their_memory_in_each_epoch():
    made = loader(persistent_workers=True)
    before = psutil.Process().num_fds()
    for _ in range(5):
        assert_right(list(made))
    gc.collect()
    assert psutil.Process().num_fds() <= before + 20
    assert num_mapped() == 0


def test_abandoned_iterators_leave_nothing_behind():
    for _ in range(5):
        batches = iter(loader())
        next(batches)
        del batches
    assert settled(num_mapped)


def test_without_workers_the_batch_is_what_collate_gives():
    given = []
    made = loader(workers=0, collate=lambda rows: given.append(rows) or rows)
    assert all(batch is rows for batch, rows in zip(made, given, strict=False))


def batches_of_all_kinds():
    numbers = torch.arange(60_000)
    return {
        "uint8": np.arange(200_000, dtype=np.uint8),
        "float": np.linspace(0, 1, 50_000),
        "fortran": np.asfortranarray(np.arange(60_000).reshape(200, 300)),
        "strided": np.arange(100_000)[::2],
        "scalar": np.float32(3),
        "none": np.empty((0, 4)),
        "zero_d": torch.tensor(7),
        "objects": np.array([{"a": 1}, None], dtype=object),
        "text": ["a", "b"],
        "nested": ({"x": numbers}, [numbers, 3.5]),
        "bfloat16": numbers.to(torch.bfloat16),
        "transposed": numbers.reshape(200, 300).T,
        "view": numbers[100:50_100],
        "sparse": torch.eye(3).to_sparse(),
        "grad": torch.ones(3, requires_grad=True),
        "bool": numbers > 5,
        "complex": torch.complex(torch.ones(9_000), torch.zeros(9_000)),
    }


class All(Dataset):
    """Everything that a batch may hold, as one item."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return batches_of_all_kinds()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_whatever_a_batch_holds_arrives(method):
    made = DataLoader(
        All(),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=method,
        collate_fn=SharedMemoryCollate(same),
    )
    for batch in made:
        for name, wanted in batches_of_all_kinds().items():
            assert_same(batch[name], wanted)
        assert batch["nested"][0]["x"] is batch["nested"][1][0]
        batch["uint8"][0] = 9
        batch["nested"][0]["x"][0] = 9


def same(item):
    return item


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert found.requires_grad == wanted.requires_grad
        assert torch.equal(found.to_dense(), wanted.to_dense())
    elif isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        assert (found == wanted).all()
    elif isinstance(wanted, (tuple, list)):
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, dict):
        for name, value in wanted.items():
            assert_same(found[name], value)
    else:
        assert found == wanted


def test_a_tensor_whose_memory_torch_moves_while_the_batch_is_packed():
    made = DataLoader(
        [0], batch_size=None, num_workers=1, collate_fn=SharedMemoryCollate(two_of_one)
    )
    for _ in range(5):
        (batch,) = made
        assert batch[0].tolist() == batch[1].tolist() == list(range(100_000))


def two_of_one(_):
    numbers = torch.arange(100_000.0)
    return numbers.detach(), numbers.requires_grad_()


def test_a_tensor_that_is_shared_already_stays_shared():
    shared = torch.zeros(100_000).share_memory_()
    made = DataLoader(
        [0], batch_size=None, num_workers=1, collate_fn=SharedMemoryCollate(lambda _: shared)
    )
    (batch,) = made
    batch[0] = 5
    assert shared[0] == 5


def test_a_batch_that_cannot_be_pickled_is_an_error_and_not_a_standstill():
    made = loader(collate=lambda _: threading.Lock())
    with pytest.raises(TypeError, match="pickle"):
        next(iter(made))


def test_a_process_that_was_forked_from_the_trainer_does_not_free_its_memory():
    batches = iter(loader(Rows(100), workers=1))
    kept = next(batches)
    pid = os.fork()
    if pid == 0:
        del kept
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in batches:
        pass
    assert_right([kept], 4)


def test_batches_that_grow_and_shrink(monkeypatch):
    monkeypatch.setattr(parcels, "get_worker_info", lambda: True)
    hand_over = SharedMemoryCollate(same)
    rng = np.random.default_rng(0)
    kept = []
    for number in range(200):
        sent = {"x": rng.integers(0, 255, int(rng.integers(1, 1 << 20)), np.uint8), "n": number}
        packed = parcels.reduction.ForkingPickler.dumps(hand_over(sent))
        got = pickle.loads(packed)
        assert (got["x"] == sent["x"]).all()
        kept.append((got, sent))
        if len(kept) > int(rng.integers(0, 6)):
            del kept[int(rng.integers(0, len(kept)))]
        del got, sent
    for got, sent in kept:
        assert (got["x"] == sent["x"]).all()
    assert len(hand_over._slots._slots) <= 8
