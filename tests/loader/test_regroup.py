"""A world that changes under a loader: it continues as another rank, and rebuilds nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import shardwise as sw
from shardwise.base.errors import RankError
from tests.support.transforms import noisy

SIZE, GLOBAL = 240, 24
# Who is there at each step; few where each rank starts an interpreter.
WORLDS = (3, 5, 2, 2, 4, 1, 3, 6, 5, 2)
FEW = (2, 1)
EXECUTORS = {
    "inline": {"num_workers": 0, "num_threads": 0},
    "threads": {"num_workers": 0, "num_threads": 2},
    "processes": {"num_workers": 1},
}
Make = Callable[..., sw.DataLoader]


def make(rank: int | None = 0, world_size: int | None = 1, **options: Any) -> sw.DataLoader:
    data = sw.wrap(range(SIZE)).map(noisy)
    ranks = {"rank": rank, "world_size": world_size}
    sizes = {} if "batch_size" in options else {"global_batch_size": GLOBAL}
    return sw.DataLoader(
        data,
        **{"shuffle": True, "seed": 3, "output": "numpy", **sizes, **ranks, **options},
    )


@pytest.fixture(params=[*EXECUTORS, pytest.param("servers", marks=pytest.mark.extension)])
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes loaders of one executor."""
    if request.param != "servers":
        yield lambda *ranks, **more: make(*ranks, **EXECUTORS[request.param], **more)
        return
    from tests.support.batch_servers import BatchServers, module_of, write_dataset

    path = write_dataset(tmp_path, size=SIZE)
    with BatchServers(path, 1) as servers:
        data = module_of(path).dataset()
        executor = sw.service(",".join(servers.addresses))
        yield lambda rank=0, world_size=1, **more: sw.DataLoader(
            data, global_batch_size=GLOBAL, shuffle=True, seed=3, output="numpy", rank=rank,
            world_size=world_size, executor=executor, **more,
        )  # fmt: skip


def rows(batches: list[dict[str, Any]]) -> list[tuple[int, list[float]]]:
    """Samples with their random numbers, in order of the samples."""
    return sorted(
        (int(value), np.ravel(noise).tolist())
        for batch in batches
        for value, noise in zip(batch["value"], batch["noise"], strict=True)
    )


def test_iterators_continue_with_the_global_batches_of_one_rank(
    maker: Make, request: pytest.FixtureRequest
) -> None:
    worlds = FEW if "processes" in request.node.name else WORLDS
    with ExitStack() as stack, make(**EXECUTORS["inline"]) as alone:
        expected = [rows([batch]) for batch in alone]
        if "servers" in request.node.name:
            expected = [rows([batch]) for batch in stack.enter_context(maker())]
        loaders: list[sw.DataLoader] = []
        batches: list[Iterator[Any]] = []
        got = []
        for world_size in worlds:
            while len(loaders) < world_size:
                loader = stack.enter_context(maker())
                if loaders:
                    loader.load_state_dict(loaders[0].state_dict())
                loaders.append(loader)
                batches.append(iter(loader))
            for rank in range(world_size):
                loaders[rank].regroup(rank, world_size)
            step = [next(batches[rank]) for rank in range(world_size)]
            sizes = [len(batch["value"]) for batch in step]
            assert max(sizes) == loaders[0].batch_size == -(-GLOBAL // world_size)
            got.append(rows(step))
            states = [loader.state_dict() for loader in loaders[:world_size]]
            assert all(state == states[0] for state in states)
            del loaders[world_size:], batches[world_size:]
        assert got == expected[: len(worlds)]
        assert {len(loader) for loader in loaders} == {SIZE // GLOBAL}


def test_workers_and_threads_stay() -> None:
    def seen(loader: sw.DataLoader, batches: Iterator[Any]) -> tuple[set[int], set[int]]:
        pids = {int(pid) for _ in range(2) for pid in next(batches)["pid"]}
        return pids, {child.pid for child in psutil.Process().children()}

    with make(1, 3, num_workers=1) as loader:
        batches = iter(loader)
        pids, children = seen(loader, batches)
        loader.regroup(1, 2)
        again, now = seen(loader, batches)
        assert again == pids <= children
        # Processes that another test left may end meanwhile.
        assert now <= children
    before = set(threading.enumerate())
    with make(1, 3, num_workers=0, num_threads=2) as loader:
        batches = iter(loader)
        next(batches)
        ours = loader._maker.executor._pools  # type: ignore[attr-defined]
        pools = dict(ours)
        threads = {t for t in threading.enumerate() if t.name.startswith("shardwise_")} - before
        assert threads
        loader.regroup(0, 4)
        next(batches)
        assert loader._maker.executor._pools == pools  # type: ignore[attr-defined]
        assert set(threading.enumerate()) >= threads


def test_open_files_stay(tmp_path: Path) -> None:
    def files() -> dict[str, str]:
        folder = Path("/proc/self/fd")
        links = {
            fd: os.readlink(folder / fd) for fd in os.listdir(folder) if (folder / fd).exists()
        }
        return {fd: link for fd, link in links.items() if link.startswith(str(tmp_path))}

    with sw.TarWriter(str(tmp_path / "{shard:03d}.tar"), max_samples=20) as writer:
        for i in range(120):
            writer.write({"__key__": f"{i:04d}", "txt": str(i).encode()})
    data = sw.tar(str(tmp_path / "*.tar"))
    with sw.DataLoader(data, global_batch_size=24, rank=0, world_size=2, num_threads=1) as loader:
        batches = iter(loader)
        next(batches)
        before = files()
        assert before
        loader.regroup(0, 3)
        next(batches)
        assert before.items() <= files().items()


def test_batches_that_were_made_ahead_count_for_nothing() -> None:
    with make(0, 2, num_workers=0, num_threads=1, prefetch_factor=6) as loader:
        batches = iter(loader)
        next(batches)
        loader.regroup(0, 3)
        left = [*batches]
        assert [len(batch["value"]) for batch in left] == [8] * 9
        certificate = loader.certificate()
        assert (certificate["from"], certificate["to"], certificate["ok"]) == (24, SIZE, True)


def test_the_next_iterator_continues_too_and_an_older_one_does_not() -> None:
    with make(0, 2, num_threads=0) as loader:
        batches = iter(loader)
        next(batches)
        loader.regroup(0, 4)
        later = iter(loader)
        assert loader.state_dict()["position"] == GLOBAL
        assert len(next(later)["value"]) == 6
        with pytest.raises(RuntimeError, match="another iterator"):
            next(batches)
        loader.regroup(1, 2)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(RuntimeError, match="its state was set"):
            next(later)


def test_a_regroup_after_the_last_batch_leaves_the_end_and_changes_the_next_epoch() -> None:
    with make(0, 2, num_threads=0) as loader:
        batches = iter(loader)
        for _ in range(len(loader)):
            next(batches)
        loader.regroup(2, 3)
        assert next(batches, None) is None
        assert [len(batch["value"]) for batch in loader] == [8] * 10


def test_a_batch_size_per_rank_makes_other_global_batches_of_the_same_order() -> None:
    with make(0, 3, batch_size=8, num_threads=0, remainder="uneven") as loader:
        batches = iter(loader)
        next(batches)
        loader.regroup(0, 1)
        left = [int(i) for batch in batches for i in batch["value"]]
    with make(0, 1, batch_size=1, num_threads=0) as one:
        assert left == [int(i) for batch in one for i in batch["value"]][24:]


@pytest.mark.extension
def test_buckets_of_a_batch_size_per_rank_keep_their_order_within_the_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, SIZE)
    options: dict[str, Any] = {
        "batch_size": 8, "num_threads": 0, "remainder": "uneven", "batch_by": sw.buckets(lengths),
    }  # fmt: skip
    with ExitStack() as stack:
        loaders = [stack.enter_context(make(rank, 3, **options)) for rank in range(3)]
        got = [int(i) for loader in loaders for i in next(iter(loader))["value"]]
        for rank in range(2):
            loaders[rank].regroup(rank, 2)
            got += [int(i) for batch in loaders[rank] for i in batch["value"]]
    assert sorted(got) == list(range(SIZE))


@pytest.mark.extension
def test_a_mixture_whose_batches_depend_on_the_world_is_refused_and_continues() -> None:
    parts = {name: (sw.wrap(range(60)), 1.0) for name in "ab"}
    mixed = sw.mix(parts, per="batch", until=96)
    with sw.DataLoader(mixed, 4, rank=0, world_size=3, num_threads=0) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(sw.StateError, match="global_batch_size"):
            loader.regroup(0, 2)
        assert len(list(batches)) == 7


@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [
        ({"rank": 2}, ValueError, "rank=2 with world_size=None: give both"),
        ({"rank": 3, "world_size": 3}, ValueError, r"rank must lie in \[0, world_size\)"),
        ({"rank": 0, "world_size": 25}, ValueError, "global_batch_size=24 with world_size=25"),
        ({"rank": 0, "world_size": 2.5}, TypeError, "must be integers"),
        ({}, RankError, "found no process group and no launcher, and this is one of 2 ranks"),
        ({"group": object()}, TypeError, "neither a torch process group"),
    ],
)
def test_a_world_that_is_none_changes_nothing(ranks: Any, error: Any, message: str) -> None:
    with make(1, 2, num_threads=0) as loader, make(1, 2, num_threads=0) as other:
        batches, expected = iter(loader), iter(other)
        assert rows([next(batches)]) == rows([next(expected)])
        with pytest.raises(error, match=message):
            loader.regroup(**ranks)
        assert loader.state_dict() == other.state_dict()
        assert [rows([batch]) for batch in batches] == [rows([batch]) for batch in expected]
        assert (loader.rank, loader.world_size) == (1, 2)


@pytest.fixture
def join() -> Iterator[Callable[[int, int], None]]:
    """Makes this process a rank of another group: one whose collectives do nothing."""

    def leave() -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def become(rank: int, world_size: int) -> None:
        leave()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    yield become
    leave()


@pytest.mark.parametrize("kind", ["found", "passed", "group"])
def test_the_ranks_of_a_group_that_was_made_again_are_found(join: Any, kind: str) -> None:
    join(1, 3)
    ranks = (1, 3) if kind == "passed" else (None, None)
    group = dist.group.WORLD if kind == "group" else None
    with make(*ranks, num_threads=0, group=group) as loader:
        batches = iter(loader)
        next(batches)
        join(1, 2)
        loader.regroup(**({"group": dist.group.WORLD} if kind == "group" else {}))
        assert (loader.rank, loader.world_size) == (1, 2)
        assert [len(batch["value"]) for batch in batches] == [12] * 9


def test_without_a_regroup_a_changed_group_is_an_error_that_names_it(join: Any) -> None:
    join(0, 3)
    with make(num_threads=0, rank=None, world_size=None) as loader:
        batches = iter(loader)
        next(batches)
        join(0, 2)
        with pytest.raises(RankError, match=r"loader\.regroup\(\)"):
            next(batches)


def test_a_process_that_is_no_member_of_the_group_is_told_so(join: Any) -> None:
    class Others:
        def rank(self) -> int:
            return -1

        def size(self) -> int:
            return 2

    with (
        make(0, 2, num_threads=0) as loader,
        pytest.raises(RankError, match="no member of the group"),
    ):
        loader.regroup(group=Others())


def test_a_loader_that_travelled_regroups_where_it_is(tmp_path: Path) -> None:
    import pickle

    with make(0, 2, num_threads=0) as loader:
        next(iter(loader))
        with pickle.loads(pickle.dumps(loader)) as copy:
            copy.regroup(3, 4)
            assert [len(batch["value"]) for batch in copy] == [6] * 9
