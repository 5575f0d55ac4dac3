"""The loader: exactly once, equal steps, one order, a state of its own, as frameworks meet it."""

import pickle
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise import DataLoader
from shardwise.base.errors import RankError, StateError
from shardwise.dataset import Dataset
from shardwise.loader.notices import warn_once
from shardwise.plan import SequentialSampler
from shardwise.testing import check_resume
from tests.support.memory_source import MemorySource, numbered_samples
from tests.support.properties import examples
from tests.support.transforms import augmented

SHARDS = list(range(6, 16))
NUM_SAMPLES = sum(SHARDS)
SHUFFLES = [False, "full", "window"]
REMAINDERS = ["drop", "pad", "uneven"]


def numbered(num_samples=NUM_SAMPLES, shards=None):
    shards = SHARDS if shards is None and num_samples == NUM_SAMPLES else shards
    return Dataset(MemorySource(numbered_samples(num_samples), shards)).select("cls", "txt")


def make(dataset=None, **options):
    given = {"output": "numpy", "rank": 0, "world_size": 1, "num_threads": 0, **options}
    return DataLoader(numbered() if dataset is None else dataset, **given)


def ids(loader):
    return [batch["__index__"].tolist() for batch in loader]


def global_batches(world_size, *, epoch=0, **options):
    """Valid ids by step, of all ranks behind one another: the global order."""
    ranks = []
    for rank in range(world_size):
        loader = make(rank=rank, world_size=world_size, **options)
        loader.set_epoch(epoch)
        batches = []
        for batch in loader:
            kept = batch.get("__valid__", np.ones(len(batch["__index__"]), dtype=bool))
            batches.append(batch["__index__"][kept].tolist())
        ranks.append(batches)
    assert len({len(batches) for batches in ranks}) == 1, "ranks differ in their steps"
    return [[i for batch in step for i in batch] for step in zip(*ranks, strict=True)]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = set()
    for seed in range(3):
        loader = make(shuffle="full", seed=seed, remainder="uneven")
        for epoch in range(3):
            assert loader.epoch == epoch
            orders.add(tuple(map(tuple, ids(loader))))
    assert len(orders) == 9


def test_a_finished_loader_goes_on_with_the_next_epoch():
    loader = make(shuffle="full", batch_size=10)
    first, second = ids(loader), ids(loader)
    again = make(shuffle="full", batch_size=10)
    again.set_epoch(1)
    assert ids(again) == second != first


def test_a_loop_that_was_left_begins_its_epoch_again():
    loader = make(shuffle="full", batch_size=10)
    whole = ids(make(shuffle="full", batch_size=10))
    assert next(iter(loader))["__index__"].tolist() == whole[0]
    assert ids(loader) == whole


def test_iterators_do_nothing_before_their_first_next():
    source = MemorySource(numbered_samples(40))
    loader = make(Dataset(source), batch_size=4)
    iterators = [iter(loader) for _ in range(3)]
    assert source.reads == []
    assert len(list(iterators[2])) == 10


def test_an_older_iterator_is_told_that_it_was_overtaken():
    loader = make(batch_size=4)
    older = iter(loader)
    next(older)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another iterator"):
        next(older)


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_resumed_loader_goes_on_as_if_never_stopped(shuffle, remainder):
    check_resume(lambda: make(batch_size=16, shuffle=shuffle, remainder=remainder, seed=2))


def test_virtual_epochs_resume_and_cover_the_data():
    options = {"batch_size": 5, "shuffle": "full", "epoch_size": 40}
    check_resume(lambda: make(**options), num_epochs=4)
    loader = make(**options)
    given = [i for _ in range(3) for batch in ids(loader) for i in batch]
    assert len(given) == 120
    assert set(given) == set(range(NUM_SAMPLES))


@given(
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    worlds=st.lists(st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2)]), min_size=6),
    shuffle=st.sampled_from(SHUFFLES),
)
@settings(max_examples=examples(50))
def test_any_chain_of_world_sizes_gives_the_uninterrupted_order(cuts, worlds, shuffle):
    whole = global_batches(1, batch_size=12, shuffle=shuffle, remainder="uneven")
    state = None
    given = []
    for cut, (world_size, batch_size) in zip([*cuts, 100], worlds, strict=False):
        states = []
        rows = []
        for rank in range(world_size):
            loader = make(
                rank=rank,
                world_size=world_size,
                batch_size=batch_size,
                shuffle=shuffle,
                remainder="uneven",
            )
            if state is not None:
                loader.load_state_dict(state)
            if loader.epoch > 0:
                break
            batches = [b["__index__"].tolist() for _, b in zip(range(cut), loader, strict=False)]
            rows.append(batches)
            states.append(loader.state_dict())
        if not rows:
            break
        assert all(other == states[0] for other in states), "ranks have different states"
        state = states[0]
        for step in zip(*rows, strict=True):
            given.append([i for batch in step for i in batch])
    assert given == whole[: len(given)]
    if state["epoch"] == 1:
        assert given == whole


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_state_is_taken_up_with_another_batch_size_exactly_once(by_torch, tmp_path):
    from torch.distributed import checkpoint  # 2 s of CPU time

    first = make(batch_size=16, shuffle="full", remainder="uneven")
    iterator = iter(first)
    given = [i for _ in range(3) for i in next(iterator)["__index__"].tolist()]
    checkpoint.save({"loader": first}, checkpoint_id=tmp_path, no_dist=True)
    for rank in range(3):
        second = make(batch_size=5, shuffle="full", remainder="uneven", rank=rank, world_size=3)
        if by_torch:
            checkpoint.load({"loader": second}, checkpoint_id=tmp_path, no_dist=True)
        else:
            second.load_state_dict(first.state_dict())
        given += [i for batch in ids(second) for i in batch]
    assert sorted(given) == list(range(NUM_SAMPLES))


def test_the_state_counts_what_was_handed_out_not_what_was_made_ahead():
    loader = make(batch_size=4, num_threads=2, prefetch_factor=8)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert loader.state_dict()["position"] == 8
    loader.close()


def test_the_length_stays_that_of_the_epoch_after_a_resume():
    loader = make(batch_size=4)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    resumed = make(batch_size=4)
    resumed.load_state_dict(loader.state_dict())
    assert len(resumed) == 27
    assert len(ids(resumed)) == 22
    assert len(resumed) == 27


def test_after_the_last_batch_the_state_stands_at_the_next_epoch():
    loader = make(batch_size=NUM_SAMPLES)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    assert loader.epoch == 0
    assert next(iterator, None) is None
    assert loader.epoch == 1


def test_the_steps_that_are_left_are_those_of_the_pass():
    loader = make(batch_size=4)
    assert loader.num_steps_left == len(loader)
    left = [loader.num_steps_left for _ in loader]
    assert left == list(range(len(loader) - 1, -1, -1))
    assert loader.num_steps_left == len(loader), "of the next epoch"
    iterator = iter(loader)
    next(iterator)
    resumed = make(batch_size=2)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.num_steps_left == len(list(resumed)) < len(resumed)


def test_setting_the_epoch_that_was_loaded_keeps_the_position():
    loader = make(batch_size=4)
    iterator = iter(loader)
    next(iterator)
    resumed = make(batch_size=4)
    resumed.load_state_dict(loader.state_dict())
    resumed.sampler.set_epoch(0)
    assert len(ids(resumed)) == 26
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(1)
    assert len(ids(resumed)) == 27


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "seed"),
        ({"shuffle": "window"}, "this loader .window."),
        ({"epoch_size": 50}, "epoch_size"),
        ({"dataset": numbered(50)}, "num_samples"),
    ],
)
def test_a_state_of_another_order_is_refused_with_what_differs(change, message):
    options = {"shuffle": "full", "batch_size": 10}
    state = make(**options).state_dict()
    with pytest.raises(StateError, match=message):
        make(**{**options, **change}).load_state_dict(state)


@pytest.mark.parametrize("state", [{}, {"version": 99}, {"epoch": -1}, {"position": 10_000}])
def test_a_state_that_is_no_state_is_refused(state):
    good = make().state_dict()
    with pytest.raises(StateError):
        make().load_state_dict({**good, **state} if state else {})


def test_a_pickled_loader_keeps_its_rank_and_position(monkeypatch):
    loader = make(batch_size=4, rank=1, world_size=3, num_threads=2)
    next(iter(loader))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "7")
    copy = pickle.loads(pickle.dumps(loader))
    assert (copy.rank, copy.world_size) == (1, 3)
    assert copy.state_dict() == loader.state_dict()
    assert len(ids(copy)) == len(loader) - 1
    copy.close()
    loader.close()


def test_a_world_size_without_a_rank_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RankError, match="RANK"):
        DataLoader(numbered())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1000, "remainder": "drop"}, "remainder='pad'"),
        ({"shuffle": "random"}, "shuffle"),
        ({"remainder": "keep"}, "remainder"),
        ({"output": "tensorflow"}, "output"),
        ({"num_workers": -1}, "num_workers"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"timeout": -1}, "timeout"),
        ({"on_error": "warn"}, "on_error"),
        ({"epoch_size": 0}, "epoch_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"pin_memory": True}, "pin_memory"),
    ],
)
def test_options_that_can_not_work_are_refused_with_their_name(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_a_dataset_without_samples_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        make(Dataset(MemorySource([])))


def test_padding_is_marked_and_counted():
    loader = make(batch_size=50, remainder="pad")
    batches = list(loader)
    assert [b["__valid__"].sum() for b in batches] == [50, 50, 5]
    assert all(len(b["__index__"]) == 50 for b in batches)
    assert loader.stats()["padded"] == 45


def test_dropping_is_counted():
    loader = make(batch_size=50, remainder="drop")
    assert len(list(loader)) == 2
    assert loader.stats()["dropped"] == 5


def test_by_default_each_sample_comes_once_where_nothing_is_shuffled(caplog):
    for options in ({}, {"sampler": SequentialSampler(NUM_SAMPLES)}, {"epoch_size": 33}):
        loader = make(batch_size=50, **options)
        assert (loader.plan.remainder, loader.drop_last) == ("uneven", False)
    loader = make(batch_size=50)
    assert [i for batch in ids(loader) for i in batch] == list(range(NUM_SAMPLES))
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("options", "num_lines"),
    [
        ({}, 1),
        ({"remainder": "drop"}, 0),
        ({"drop_last": True}, 0),
        ({"batch_size": 35}, 0),  # nothing is left over
        ({"rank": 1, "world_size": 2}, 0),  # rank 0 says it
    ],
)
def test_what_the_default_drops_is_said_once_with_the_number_and_the_knob(
    caplog, options, num_lines
):
    warn_once.cache_clear()  # of other tests in this process
    for _ in range(2):  # a program may make its loader anew in each epoch
        loader = make(**{"batch_size": 50, "shuffle": True, **options})
        assert (loader.plan.remainder, loader.drop_last) == ("drop", True)
        for _ in range(2):
            ids(loader)
    assert len(caplog.messages) == num_lines
    for line in caplog.messages:
        assert "Dropping 5 of 105 samples per epoch" in line
        assert "remainder='pad'" in line


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_empty_batch_has_the_form_that_a_transform_gives_to_a_full_one(num_workers):
    dataset = numbered().decode(cls=int).map(augmented)
    last = []
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, "num_workers": num_workers, "num_threads": None}
        with make(dataset, batch_size=26, remainder="uneven", **options) as loader:
            last.append(list(loader)[-1])
    assert [len(batch["__index__"]) for batch in last] == [1, 0]
    for batch in last[1:]:
        assert list(batch) == list(last[0])
        assert batch["crop"].shape == (0, 4)
        assert [batch[name].dtype for name in ("cls", "crop")] == [np.int64, np.int64]
        assert batch["txt"] == []


def test_batches_are_tensors():
    with DataLoader(numbered().decode(cls=int), batch_size=7, rank=0, world_size=1) as loader:
        batch = next(iter(loader))
    assert isinstance(batch["cls"], torch.Tensor)
    assert batch["cls"].dtype == torch.int64
    assert batch["__index__"].dtype == torch.int64
    assert batch["txt"][3] == b"text 3"


def test_frameworks_find_what_they_look_for():
    loader = make(batch_size=4)
    assert not isinstance(loader, torch.utils.data.DataLoader)
    assert len(loader.dataset) == NUM_SAMPLES
    assert (loader.batch_sampler, loader.batch_size, loader.drop_last) == (None, 4, False)
    assert (loader.num_workers, loader.pin_memory, loader.multiprocessing_context) == (
        0,
        False,
        None,
    )
    assert loader.use_stateful_dataloader
    assert loader._is_accelerate_prepared
    loader.sampler.set_epoch(3)
    assert loader.epoch == 3


def test_a_framework_that_checks_iter_first_and_sets_the_epoch_late_loses_nothing():
    # Lightning: load_state_dict, iter() to check, iter() to use, then sampler.set_epoch.
    loader = make(shuffle="full", batch_size=5)
    whole = ids(make(shuffle="full", batch_size=5))
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    resumed = make(shuffle="full", batch_size=5)
    resumed.load_state_dict(loader.state_dict())
    iter(resumed)
    iterator = iter(resumed)
    resumed.sampler.set_epoch(0)
    assert [batch["__index__"].tolist() for batch in iterator] == whole[7:]


def test_code_that_insists_on_torchs_class_gets_an_instance_of_it():
    loader = make(batch_size=4, output="torch")
    facade = loader.as_torch_dataloader()
    assert isinstance(facade, torch.utils.data.DataLoader)
    assert len(facade) == len(loader)
    batches = iter(facade)
    given = [next(batches)["__index__"].tolist() for _ in range(3)]
    state = facade.state_dict()
    assert state == loader.state_dict()
    resumed = make(batch_size=4, output="torch").as_torch_dataloader()
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    given += [batch["__index__"].tolist() for batch in resumed]
    assert given == ids(make(batch_size=4))


@pytest.mark.extension
def test_the_batch_that_keras_builds_a_model_from_is_trained_on_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))
    facade = make(shuffle="full", batch_size=5, output="torch").as_torch_dataloader()

    def _symbolic_build():  # under the name that fit calls it by
        def _enumerate_iterator():
            yield iter(facade)

        return next(next(_enumerate_iterator()))["__index__"].tolist()

    whole = ids(make(shuffle="full", batch_size=5))
    for position in range(len(whole)):
        steps = iter(facade)
        for _ in range(position):
            next(steps)
        facade.load_state_dict(facade.state_dict())
        assert _symbolic_build() == whole[position]
        assert facade.epoch == 0
        assert [batch["__index__"].tolist() for batch in facade] == whole[position:]
        facade.set_epoch(0)


def test_a_program_that_takes_as_many_batches_as_there_are_goes_on_to_the_next_epoch():
    whole, counted = (
        DataLoader(
            sw.wrap(list(range(20))),
            batch_size=4,
            shuffle=True,
            rank=0,
            world_size=1,
            output="numpy",
            num_threads=0,
        )
        for _ in range(2)
    )
    for epoch in range(3):
        batches = iter(counted)
        taken = [next(batches)["value"].tolist() for _ in range(len(counted))]
        assert taken == [batch["value"].tolist() for batch in whole]
        assert counted.state_dict() == whole.state_dict()
        assert whole.epoch == epoch + 1
    # The last one is not begun yet, and its end was not asked for.
    assert counted.stats()["dropped"] == 0
