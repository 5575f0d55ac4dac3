"""From workers' memory to the device without a copy in the trainer: order and lifetime.

CUDA is a stand-in that copies as late as CUDA may; processes and their memory are real.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import warnings

import numpy as np
import pytest
import torch

import shardwise as sw
from shardwise.engine.processes.slots import _IN_USE, SlotPool
from shardwise.engine.request import Batch
from shardwise.tensors.device import PageLocks, StreamCopier, _unlock
from tests.support.fake_cuda import FakeCuda
from tests.support.memory_source import MemorySource, numbered_samples
from tests.support.transforms import widened

CUDA = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda().install(monkeypatch)


def loader(num_samples=240, **options):
    data = sw.Dataset(MemorySource(numbered_samples(num_samples)))
    data = data.decode(cls=int, bin=sw.array("<i8", (1,))).map(widened)
    given = {"batch_size": 8, "shuffle": "full", "seed": 3, "rank": 0, "world_size": 1}
    given |= {"num_workers": 2, "timeout": 120, "device": "cuda"}
    return sw.DataLoader(data, **{**given, **options})


def compared(batches, cuda):
    """Let the late copies end, and hold each batch against its samples."""
    cuda.record().synchronize()
    seen = []
    for batch in batches:
        ids = batch["__index__"].tolist()
        assert batch["bin"][:, 0].tolist() == batch["cls"].tolist() == ids
        assert (batch["wide"] == batch["__index__"][:, None]).all(), ids
        seen += ids
    return seen


def finish_copies(made):
    for event, _ in made._maker.output._copier._sources:
        event.synchronize()


def require_unregistered(cuda):
    """See that nothing stays registered once the loader is gone."""
    gc.collect()
    assert cuda.registered == {}
    assert cuda.notes.count("unregister") == sum(note[:8] == "register" for note in cuda.notes)


def test_memory_of_workers_is_registered_once_and_kept_until_the_event_of_its_copy(cuda):
    made = loader()
    # Each batch's host memory is dropped at once, and only its late copy is looked at.
    batches = [batch for _ in range(2) for batch in made]
    registers = [note for note in cuda.notes if note.startswith("register")]
    assert 2 <= len(registers) < 50  # slots, of 60 batches
    finish_copies(made)
    assert sorted(compared(batches, cuda)) == sorted([*range(240), *range(240)])
    assert threading.main_thread() not in cuda.threads
    made.close()
    del made
    require_unregistered(cuda)


def test_registering_that_is_refused_is_said_once_and_batches_are_pinned_by_a_thread(cuda, caplog):
    cuda.refuses = 2
    made = loader()
    batches = list(made)
    finish_copies(made)
    assert sorted(compared(batches, cuda)) == list(range(240))
    [said] = [record.getMessage() for record in caplog.records]
    assert "cudaHostRegister: error 2, out of memory;" in said
    assert "ulimit -l" in said
    # No kernel of the program's raises the refusal as its own error.
    assert cuda.pending == set()
    assert cuda.pinned >= 30
    assert threading.main_thread() not in cuda.threads
    made.close()
    del made
    require_unregistered(cuda)


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 0, "num_threads": 2}])
def test_pin_memory_alone_makes_page_locked_tensors_beside_the_main_thread(cuda, options):
    """Copied, also from workers' memory: of other memory than its own, torch forgets the copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardwise.tensors.convert.can_page_lock", lambda: True)
        with loader(device=None, pin_memory=True, **options) as made:
            batches = list(made)
    assert all(t.is_fake_pinned for b in batches for t in b.values() if hasattr(t, "numpy"))
    assert sorted(compared(batches, cuda)) == list(range(240))
    assert cuda.notes == []
    assert threading.main_thread() not in cuda.threads


def test_an_epoch_left_early_ends_in_the_next_one_with_the_right_batches(cuda):
    made = loader()
    early = list(itertools.islice(made, 3))
    batches = list(made)
    finish_copies(made)
    assert len(compared(early, cuda)) == 24
    assert sorted(compared(batches, cuda)) == list(range(240))
    made.close()
    del made
    require_unregistered(cuda)


def slots():
    return SlotPool(max_idle=2)


def in_use(pool):
    return [slot for slot in pool._slots if slot.state == _IN_USE]


def test_a_range_is_unregistered_before_its_address_is_mapped_again(cuda):
    locks = PageLocks(CUDA)
    for _ in range(50):
        pool = slots()
        slot = pool.take(1 << 16)
        locks.lock(slot)
        locks.lock(slot)
        slot.free()
        pool.close()
        del slot
        assert cuda.registered == {}
    assert cuda.notes == [f"register {1 << 16}", "unregister"] * 50


def test_the_slot_of_a_kept_tensor_stays_registered_until_that_is_gone(cuda):
    locks, pool = PageLocks(CUDA), slots()
    slot = pool.take(1 << 16)
    locks.lock(slot)
    kept = torch.from_numpy(pool.lend(slot)[:100])
    pool.close()
    del slot
    gc.collect()
    assert cuda.is_registered(kept)
    del kept
    gc.collect()
    assert cuda.registered == {}


def test_a_forked_child_unregisters_nothing(cuda):
    _unlock(os.getpid() + 1, CUDA, 4096)
    assert cuda.notes == []


def copier_of(cuda, num_bytes=64):
    """A copier, and a slot's tensor whose copy it has begun."""
    copier, pool = StreamCopier(CUDA), slots()
    slot = pool.take(4096)
    source = torch.from_numpy(pool.lend(slot)[:num_bytes])
    data = copier.prepare({"x": source}, slot)
    assert data["x"] is source
    return copier, pool, data


def test_a_slot_is_not_given_back_before_the_event_of_its_copy_whatever_is_dropped(cuda):
    cuda.late.random = lambda: 0.0  # no event is found done by a query
    copier, pool, data = copier_of(cuda)
    there = copier.end(copier.begin(data))
    data["x"].fill_(7)
    del data
    copier.end(copier.begin({}))
    assert in_use(pool)
    del copier  # which waits
    gc.collect()
    assert not in_use(pool)
    assert there["x"].tolist() == [7] * 64


def test_a_batch_that_finds_no_room_keeps_the_sources_of_what_was_begun(cuda):
    cuda.late.random = lambda: 0.0
    copier, pool, data = copier_of(cuda)
    calls = itertools.count()

    def second_fails(tensor, *args, **options):
        if next(calls):
            raise torch.OutOfMemoryError("no room")
        return cuda.to(tensor, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", second_fails)
        with pytest.raises(torch.OutOfMemoryError):
            copier.begin({**data, "y": data["x"][:1]})
    del data
    gc.collect()
    assert in_use(pool)


def test_objects_that_move_themselves_do_so_in_the_callers_stream(cuda):
    notes = []

    class Own:
        def to(self, device, non_blocking):
            notes.append(f"to {device}")
            return self

    copier = StreamCopier(CUDA)
    begun = copier.begin([Own(), "text"])
    assert notes == []
    copier.end(begun)
    assert notes == ["to cuda:0"]


def test_two_threads_let_go_of_no_source_whose_copy_is_under_way(cuda):
    copier, is_second_here = StreamCopier(CUDA), threading.Event()
    other = threading.Thread(target=copier._release)

    class Done:
        def query(self):
            if threading.current_thread() is other:
                is_second_here.set()
            else:
                other.start()
                # The second thread is here, or waits for this one.
                is_second_here.wait(0.2)
            return True

    class UnderWay:
        def query(self):
            return False

    under_way = UnderWay(), [torch.zeros(1)]
    copier._sources.extend([(Done(), []), under_way])
    copier._release()
    other.join()
    assert [*copier._sources] == [under_way]
    copier._sources.clear()


def tensors_of_several():
    parts = [torch.zeros(2), torch.zeros(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # beta, says torch
        return {
            "coo": torch.eye(3).to_sparse(),
            "csr": torch.eye(3).to_sparse_csr(),
            "jagged": torch.nested.nested_tensor(parts, layout=torch.jagged),
            "nested": torch.nested.nested_tensor(parts),
        }


@pytest.mark.parametrize("kind", ["coo", "csr", "jagged", "nested"])
def test_tensors_of_several_move_in_the_callers_stream(cuda, kind):
    """torch has no `record_stream` for sparse ones, which copies on another stream would need."""
    tensor = tensors_of_several()[kind]
    copier = StreamCopier(CUDA)
    begun = copier.begin(copier.prepare({"a": tensor}, None))
    assert cuda.notes == []
    assert copier.end(begun)["a"] is tensor
    assert cuda.notes == ["move a tensor of several"]


def test_a_batch_prepared_by_the_executor_is_not_prepared_again():
    made = loader(device=None, num_workers=0, num_threads=1)
    batch = Batch({"x": np.zeros(2)}, num_rows=2)
    made._maker.output.prepare(batch)
    tensor = batch.data["x"]
    assert made._maker.output.of(batch)["x"] is tensor
