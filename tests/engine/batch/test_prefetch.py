"""Prefetch is bounded in batches and in bytes, whether sizes are known before or measured."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.engine.batch import prefetch as prefetch_module
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import PartialBatch
from shardwise.engine.batch.prefetch import DepthGrowth, PictureMemory, PrefetchBound, num_bytes
from shardwise.engine.request import Batch, BatchRequest
from shardwise.engine.threads import ThreadExecutor


def test_bytes_are_those_of_arrays_bytes_and_text_at_any_depth():
    assert num_bytes(np.zeros((3, 5), np.float32)) == 60
    assert num_bytes({"a": np.zeros(8, np.uint8), "b": [np.zeros(4), np.zeros(2)]}) == 56
    assert num_bytes([b"x" * 1000] * 3) == pytest.approx(3000, rel=0.1)
    assert num_bytes(["x" * 1000] * 1000) == pytest.approx(1_000_000, rel=0.1)
    assert num_bytes([{"a": [np.zeros(100)]}] * 200) == 160_000
    assert num_bytes(({"a": np.zeros(3, np.uint8)}, [])) == 3


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_sparse_tensor_has_a_size(layout):
    assert num_bytes({"a": getattr(torch.eye(3), layout)()}) > 0


def bound_of(known, max_bytes):
    dataset = sw.wrap([{"x": np.zeros(100, np.uint8)}] * 10)
    if known:
        dataset = dataset.select()
    return PrefetchBound(BatchBuilder(dataset), max_bytes)


def test_the_largest_of_the_last_batches_and_the_rows_set_aside_bound_the_depth(monkeypatch):
    monkeypatch.setattr(prefetch_module, "picture_memory", lambda: PictureMemory(0))
    request = BatchRequest(0, 0, np.arange(4))
    bound = bound_of(known=False, max_bytes=1000)
    assert bound.depth(16) == 2  # not measured yet
    bound.made(Batch({"x": np.zeros(100, np.uint8)}, num_rows=1))
    assert bound.depth(16) == 9  # and the one that the program has
    assert bound.depth(4) == 4
    bound.made(Batch({"x": np.zeros(300, np.uint8)}, num_rows=1))
    assert bound.depth(16) == 2
    for _ in range(8):
        bound.made(Batch({"x": np.zeros(50, np.uint8)}, num_rows=1))
    assert bound.depth(64) == 19
    bound.begun(PartialBatch(request, {"x": np.zeros((4, 75), np.uint8)}))
    assert bound.depth(64) == 2
    bound.made(Batch({"x": np.zeros(5000, np.uint8)}, num_rows=1))
    assert bound.depth(64) == 1  # one is always allowed
    assert bound_of(known=True, max_bytes=1000).depth(16) == 16


@given(
    max_bytes=st.integers(1, 1 << 34),
    sizes=st.lists(st.integers(1, 1 << 30), min_size=1, max_size=10),
    decoders=st.integers(0, 1 << 29),
    wanted=st.integers(1, 64),
)
def test_batches_ahead_and_the_programs_and_decoders_stay_under_the_bound(
    max_bytes, sizes, decoders, wanted
):
    class Array:
        def __init__(self, nbytes):
            self.nbytes = nbytes

    memory = PictureMemory(1 << 29)
    bound = bound_of(known=True, max_bytes=max_bytes)
    memory.limit(bound, 0)
    with memory.hold(decoders):
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch_module, "picture_memory", lambda: memory)
        for size in sizes:
            bound.made(Batch({"x": Array(size)}, num_rows=1))
        depth = bound.depth(wanted)
    largest = max(sizes[-8:])
    assert 1 <= depth <= wanted
    assert depth == 1 or (depth + 1) * largest + decoders <= max_bytes
    # No fewer than fit.
    assert depth == wanted or (depth + 2) * largest + decoders > max_bytes


def test_before_a_batch_was_made_decoders_may_take_all_that_they_are_ever_let_take(monkeypatch):
    monkeypatch.setattr(prefetch_module, "picture_memory", lambda: PictureMemory(400))
    request = BatchRequest(0, 0, np.arange(4))
    bound = bound_of(known=True, max_bytes=1000)
    bound.begun(PartialBatch(request, {"x": np.zeros(100, np.uint8)}))
    assert bound.depth(16) == 5
    bound.made(Batch({"x": np.zeros(100, np.uint8)}, num_rows=4))
    assert bound.depth(16) == 9
    assert bound.row_bytes == 25


@pytest.mark.parametrize("fixed", [True, False])
def test_no_more_is_begun_than_the_bytes_allow(fixed):
    row = 1 << 20

    class Large:
        row = ((1 << 20,), np.dtype("uint8")) if fixed else None

        def __call__(self, data):
            return np.full(1 << 20, data[0], np.uint8)

        def decode_into(self, data, out):
            out[:] = data[0]

    begun = []
    lock = threading.Lock()

    def counted(requests):
        for request in requests:
            with lock:
                begun.append(request.step)
            yield request

    data = sw.wrap([{"x": b"a"}] * 96).decode(x=Large())
    requests = [BatchRequest(0, step, np.arange(4)) for step in range(24)]
    executor = ThreadExecutor(
        BatchBuilder(data), num_threads=8, num_prefetch=16, prefetch_bytes=3 * 4 * row
    )
    batches = executor.run(counted(iter(requests)))
    for number, batch in enumerate(batches):
        assert batch.num_rows == 4
        # Two in progress or ready, and the one that the program has.
        assert len(begun) <= number + 1 + 2
    executor.close()
    assert begun == list(range(24))


def test_one_large_batch_at_a_time_has_no_more_threads_than_chunks():
    """A thread that decoded large pictures keeps freed memory."""
    used = []

    def noted(sample):
        used.append(threading.get_ident())
        return sample

    # 40 MiB a row: a row a chunk, as soon as that was measured.
    data = sw.wrap([{"x": b"a"}] * 16).decode(x=lambda data: np.zeros(40 << 20, np.uint8))
    requests = [BatchRequest(0, step, np.arange(2)) for step in range(8)]
    builder = BatchBuilder(data.map(noted))
    executor = ThreadExecutor(builder, num_threads=8, num_prefetch=4, prefetch_bytes=1)
    assert sum(batch.num_rows for batch in executor.run(iter(requests))) == 16
    executor.close()
    assert len(set(used)) <= 3  # one loaded the first batch


def test_large_batches_of_several_sizes_share_their_threads():
    """Those for each size were kept: of 8 threads up to 36 with freed memory."""
    data = sw.wrap([{"x": b"a"}] * 4).decode(x=lambda data: np.zeros(40 << 20, np.uint8))
    requests = [BatchRequest(0, rows, np.arange(rows)) for rows in (1, 1, 2, 3, 4, 1)]
    executor = ThreadExecutor(BatchBuilder(data), num_threads=4, num_prefetch=4, prefetch_bytes=1)
    assert sum(batch.num_rows for batch in executor.run(iter(requests))) == 12
    assert [len(pool._threads) for pool in executor._pools.values()] == [4, 4]
    executor.close()


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_batches_larger_than_the_bound_pass_one_at_a_time(executor):
    data = sw.wrap([{"x": np.full(10_000, i)} for i in range(30)])
    options = {"rank": 0, "world_size": 1, "output": "numpy", "executor": executor}
    with sw.DataLoader(data, 10, prefetch_bytes=1, **options) as loader:
        assert [batch["x"][:, 0].tolist() for batch in loader] == [
            list(range(start, start + 10)) for start in (0, 10, 20)
        ]


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_decoders_are_bounded_by_a_loader_as_long_as_its_pass(monkeypatch, executor, is_whole):
    memory = PictureMemory(100)
    monkeypatch.setattr(prefetch_module, "picture_memory", lambda: memory)
    data = sw.wrap([{"x": np.full(10_000, i)} for i in range(30)])
    options = {"rank": 0, "world_size": 1, "output": "numpy", "executor": executor}
    with sw.DataLoader(data, 10, prefetch_bytes=1, **options) as loader:
        batches = iter(loader)
        next(batches)
        assert max(each.limit for each in memory._passes.values()) < 0
        for _ in batches if is_whole else ():
            pass
        batches.close()
        # An evaluation between epochs must not slow the training's decoders.
        assert not memory._passes


def test_a_loader_of_text_is_not_bounded_by_a_loader_of_video_before_it(monkeypatch):
    memory = PictureMemory(400)
    monkeypatch.setattr(prefetch_module, "picture_memory", lambda: memory)
    request = BatchRequest(0, 0, np.arange(4))
    partial = PartialBatch(request, {"x": np.zeros(100, np.uint8)})
    video, text = bound_of(known=True, max_bytes=1000), bound_of(known=True, max_bytes=1000)
    for bound in (video, text):
        bound.begun(partial)
        with memory.hold(400 if bound is video else 0):
            pass
        bound.made(Batch({"x": np.zeros(100, np.uint8)}, num_rows=4))
        bound.ended()
    assert text.depth(16) == 9
    # The next pass of video leaves room before its decoders ask.
    assert video.depth(16) == 5


def test_threads_begin_one_batch_of_unknown_size_until_it_is_measured():
    begun = []

    def counted(requests):
        for request in requests:
            begun.append(request.step)
            yield request

    data = sw.wrap([{"x": np.zeros(10, np.uint8)}] * 40)
    requests = [BatchRequest(0, step, np.arange(4)) for step in range(10)]
    executor = ThreadExecutor(BatchBuilder(data), num_threads=8, num_prefetch=4)
    batches = executor.run(counted(iter(requests)))
    seen = []
    finish = executor.builder.finish

    def finished(partial):
        seen.append(len(begun))
        return finish(partial)

    executor.builder.finish = finished
    assert sum(batch.num_rows for batch in batches) == 40
    executor.close()
    assert seen[0] == 1
    assert max(seen) == 10


@pytest.mark.parametrize("value", [0, -5])
def test_prefetch_bytes_is_1_or_more(value):
    with pytest.raises(ValueError, match="prefetch_bytes"):
        sw.DataLoader([1, 2], prefetch_bytes=value, rank=0, world_size=1)


def test_the_depth_grows_where_a_batch_is_late_and_workers_were_idle():
    growth = DepthGrowth()
    for _ in range(5):
        growth.asked(is_late=True, is_idle=False)  # too slow on average: no depth would help
    for _ in range(5):
        growth.asked(is_late=False, is_idle=True)  # the program is slower
    assert growth.factor == 1
    growth.asked(is_late=True, is_idle=False)
    assert growth.factor == 4
    growth.asked(is_late=True, is_idle=False)
    assert growth.factor == 4
    for _ in range(9):
        growth.asked(is_late=True, is_idle=True)
    assert growth.factor == 16


def test_a_grown_depth_stays_within_the_bytes(monkeypatch):
    monkeypatch.setattr(prefetch_module, "picture_memory", lambda: PictureMemory(0))
    bound = bound_of(known=False, max_bytes=1000)
    bound.made(Batch({"x": np.zeros(100, np.uint8)}, num_rows=1))
    bound.growth.asked(is_late=True, is_idle=True)
    assert bound.depth(2) == 8
    assert bound.depth(2, leave=1) == 7
    assert bound.depth(4) == 9


class Held:
    """Samples of which one, the first of a batch, is held until all others of a pass are loaded."""

    def __init__(self, size, held):
        self.size, self.held = size, held
        self.loaded = set()
        self.others = threading.Event()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == self.held:
            assert self.others.wait(60), "no batch behind the late one was begun"
        self.loaded.add(index)
        if self.loaded >= {self.held + 4, self.held + 5, self.held + 6, self.held + 7}:
            self.others.set()
        return np.int64(index)


def test_threads_load_batches_beyond_the_depth_behind_a_late_one_in_order():
    # At a depth of 4, sample 10 would be awaited for ever: 14 to 17 are beyond it.
    source = Held(40, held=10)
    data = sw.wrap(source)
    executor = ThreadExecutor(BatchBuilder(data), num_threads=2, num_prefetch=4)
    requests = (BatchRequest(0, step, np.array([step])) for step in range(40))
    with closing(executor):
        executor._bound.growth.factor = 4
        got = [int(batch.data["value"][0]) for batch in executor.run(requests)]
    assert got == list(range(40))
    # It may have grown once more.
    assert executor.concurrency.num_prefetch in (16, 64)
