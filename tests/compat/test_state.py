"""The state of compat pipelines and loaders: any epoch is gone on with where it was left."""

from __future__ import annotations

import hashlib
import json
from itertools import islice, product
from operator import itemgetter
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import shardwise.compat.webdataset as wds
from shardwise.base.errors import StateError
from tests.support.tars import make_shards, sample_key
from tests.support.wds_shards import SIZES

key = itemgetter("__key__")


def shuffled(urls, **options):
    return wds.WebDataset(urls, shardshuffle=True, **options).shuffle(20).map(key)


def resampled(urls):
    return wds.WebDataset(urls, resampled=True).shuffle(20).map(key)


def pipeline(urls):
    stages = [wds.ResampledShards(urls), wds.tarfile_to_samples(), wds.shuffle(20), wds.map(key)]
    return wds.DataPipeline(*stages)


IN_PROCESS = {
    "sequential": lambda urls: wds.WebDataset(urls).map(key),
    "shuffled": shuffled,
    "batched": lambda urls: shuffled(urls).listed(4),
    "taken apart": lambda urls: shuffled(urls).listed(4).unlisted(),
    "selected": lambda urls: shuffled(urls).select(lambda k: k[-1] in "02468"),
    "random": lambda urls: shuffled(urls).rsample(0.6),
    "sized": lambda urls: shuffled(urls).with_epoch(40),
    "repeated": lambda urls: shuffled(urls).repeat(2),
    "repeated and limited": lambda urls: shuffled(urls).repeat(2, nbatches=130),
    "resampled and sized": lambda urls: resampled(urls).with_epoch(40),
}


def of_workers(dataset, num_workers, batch_size=None):
    return wds.WebLoader(dataset, batch_size=batch_size, num_workers=num_workers)


LOADERS = {
    "sharded": lambda urls, n: of_workers(shuffled(urls), n),
    "batches of the loader": lambda urls, n: of_workers(shuffled(urls), n, batch_size=4),
    "sized": lambda urls, n: of_workers(shuffled(urls).with_epoch(40), n),
    "resampled and sized": lambda urls, n: of_workers(resampled(urls).with_epoch(40), n),
    "resampled, sized behind": lambda urls, n: of_workers(resampled(urls), n).with_epoch(30),
    "shuffled behind": lambda urls, n: (
        of_workers(shuffled(urls).listed(4), n).unlisted().shuffle(10).listed(5)
    ),
    "shuffled and sized behind": lambda urls, n: (
        of_workers(shuffled(urls).listed(4), n).unlisted().shuffle(10).listed(5).with_epoch(9)
    ),
}


# Saved behind 7 items of the second epoch, with digests of what came next, before rows of
# `Places` held where a state goes on.
STATES = json.loads((Path(__file__).parent / "data" / "states_of_version_2.json").read_text())


def check_resume(make, epoch, stop):
    """Leave an epoch behind `stop` items, go on in a new pipeline; that and the next agree."""
    left = make()
    for _ in range(epoch):
        list(left)
    items = iter(left)
    given, begun, state = [], 0, left.state_dict()
    for item in items:
        given.append(item)
        if stop is None or len(given) <= stop:
            begun, state = len(given), left.state_dict()
    state = json.dumps(state)
    assert len(state) < 1024
    resumed = make()
    resumed.load_state_dict(json.loads(state))
    assert list(resumed) == given[begun:]
    assert list(resumed) == list(left)


PLACES = [(0, 1), (1, 0), (1, 7), (1, 33), (1, None)]
OTHERS = [(0, 0), (0, 7), (0, 33), (0, None), (1, 1)]


def names_and_places():
    """Two places of each pipeline, each place of four; the whole product only where time is."""
    for (number, name), place in product(enumerate(IN_PROCESS), [*PLACES, *OTHERS]):
        is_rest = place in OTHERS or (PLACES.index(place) - number) % len(PLACES) > 1
        yield pytest.param(name, *place, marks=[pytest.mark.long] if is_rest else [])


@pytest.mark.parametrize(("name", "epoch", "stop"), names_and_places())
def test_a_pipeline_goes_on(urls, name, epoch, stop):
    check_resume(lambda: IN_PROCESS[name](urls), epoch, stop)


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_without_workers_goes_on(urls, name):
    for stop in (8, None):
        check_resume(lambda: LOADERS[name](urls, 0), 1, stop)


@pytest.mark.parametrize(
    ("epoch", "stop"),
    [(0, 3), *(pytest.param(1, stop, marks=pytest.mark.long) for stop in (3, None))],
)
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_with_workers_goes_on(urls, name, epoch, stop):
    check_resume(lambda: LOADERS[name](urls, 2), epoch, stop)


def digest(keys):
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16]


@pytest.mark.parametrize("case", STATES, ids=lambda case: f"{case['name']}, {case['workers']}")
def test_states_that_were_saved_earlier_go_on_in_the_same_order(case, tmp_path, monkeypatch):
    # A state knows its shards by their paths.
    monkeypatch.chdir(tmp_path)
    urls = make_shards("shards", SIZES)
    name, workers = case["name"], case["workers"]
    resumed = IN_PROCESS[name](urls) if workers is None else LOADERS[name](urls, workers)
    resumed.load_state_dict(case["state"])
    assert (digest(list(resumed)), digest(list(resumed))) == (case["rest"], case["next"])


def resampled_pipeline(urls, num_workers):
    return of_workers(pipeline(urls).with_epoch(60), num_workers)


def resampled_mix(urls, num_workers):
    mix = wds.RandomMix([pipeline(urls[:5]), pipeline(urls[5:])])
    return of_workers(wds.DataPipeline(mix).with_epoch(60), num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [resampled_pipeline, resampled_mix])
def test_a_loader_of_resampled_shards_goes_on_with_what_they_drew(urls, make, num_workers):
    left = make(urls, num_workers)
    items = iter(left)
    list(islice(items, 7))
    state = json.loads(json.dumps(left.state_dict()))
    resumed = make(urls, num_workers)
    resumed.load_state_dict(state)
    assert list(resumed) == list(items)
    assert list(resumed) == list(left)


def test_a_state_without_what_was_drawn_or_of_another_rank_is_refused(urls, as_reader):
    state = of_workers(pipeline(urls), 0).state_dict()
    del state["loader"]["drawn"]
    with pytest.raises(StateError, match=r"drawn a seed.*deterministic=True"):
        of_workers(pipeline(urls), 0).load_state_dict(state)
    as_reader(0, 2)
    state = pipeline(urls).state_dict()
    as_reader(1, 2)
    with pytest.raises(StateError, match=r"state of rank 0.*each rank \(1 here\)"):
        pipeline(urls).load_state_dict(state)


def test_a_loader_of_resampled_samples_goes_on_behind_a_shuffle(urls):
    def make():
        return of_workers(resampled(urls), 0).shuffle(10)

    left = make()
    begun = list(islice(left, 30))
    resumed = make()
    resumed.load_state_dict(left.state_dict())
    later = list(islice(resumed, 30))
    # What the shuffle held is drawn anew; what came out does not come again within the lap.
    assert not set(begun) & set(later)


def test_a_state_of_rank_zero_serves_the_other_ranks(urls, as_reader):
    # With 45 an epoch, the first pass ends within the second epoch on one of the ranks only.
    for make in (shuffled, lambda urls: shuffled(urls).with_epoch(45)):
        as_reader(1, 2)
        whole = make(urls)
        epochs = [list(whole) for _ in range(3)]
        as_reader(0, 2)
        saved = make(urls)
        list(saved)
        items = iter(saved)
        list(islice(items, 9))
        state = saved.state_dict()
        as_reader(1, 2)
        resumed = make(urls)
        resumed.load_state_dict(state)
        assert list(resumed) == epochs[1][9:]
        assert list(resumed) == epochs[2]


SAVED_ANEW = {
    "pipeline": shuffled,
    "sized pipeline": IN_PROCESS["sized"],
    "loader": lambda urls: of_workers(shuffled(urls), 2),
    "shuffled behind": lambda urls: LOADERS["shuffled and sized behind"](urls, 0),
}


@pytest.mark.parametrize("name", SAVED_ANEW)
def test_a_loaded_state_can_be_saved_before_anything_is_read(urls, name):
    left, resumed, again = (SAVED_ANEW[name](urls) for _ in range(3))
    items = iter(left)
    at_first = left.state_dict()
    list(islice(items, 6))
    for state in (at_first, left.state_dict()):
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        iterator = iter(resumed)
        again.load_state_dict(resumed.state_dict())
        assert list(again) == list(iterator)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("size", [-1, 45])
def test_what_another_rank_has_taken_up_can_be_saved_anew(urls, as_reader, num_workers, size):
    def make():
        # Ranks differ in how much of a pass is behind them at the same step.
        dataset = shuffled(urls).select(lambda k: k[-1] in "0248")
        return of_workers(dataset if size < 0 else dataset.with_epoch(size), num_workers)

    as_reader(1, 2)
    whole = make()
    _, expected, following = list(whole), list(whole), list(whole)
    as_reader(0, 2)
    saved = make()
    list(saved)
    items = iter(saved)
    list(islice(items, 5))
    state = saved.state_dict()
    as_reader(1, 2)
    for num in (0, 1):
        resumed, again = make(), make()
        resumed.load_state_dict(state)
        items = iter(resumed)
        list(islice(items, num))
        again.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
        assert list(again) == expected[5 + num :]
        assert list(again) == following


def test_a_loaded_place_is_forgotten_where_another_epoch_is_set(urls):
    left, resumed, again = (of_workers(shuffled(urls), 2) for _ in range(3))
    items = iter(left)
    list(islice(items, 7))
    resumed.load_state_dict(left.state_dict())
    resumed.set_epoch(4)
    items = iter(resumed)
    next(items)
    again.load_state_dict(resumed.state_dict())
    assert list(again) == list(items)


def test_set_epoch_with_the_loaded_epoch_keeps_the_place(urls):
    left = of_workers(shuffled(urls), 0)
    items = iter(left)
    list(islice(items, 9))
    resumed = of_workers(shuffled(urls), 0)
    resumed.load_state_dict(left.state_dict())
    resumed.set_epoch(0)
    assert list(resumed) == list(items)


def test_living_workers_take_up_a_state(urls):
    def make():
        options = {"batch_size": None, "num_workers": 2, "persistent_workers": True}
        return wds.WebLoader(shuffled(urls), **options)

    loader = make()
    first = list(loader)
    state = loader.state_dict()
    second = list(loader)
    loader.load_state_dict(state)
    assert list(loader) == second != first
    loader.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "seed: 0 in the state, 9 here"),
        ({"shards": 1}, "shards"),
        ({"size": 30}, "size"),
    ],
)
def test_a_state_of_something_else_is_refused(urls, change, message):
    state = shuffled(urls).state_dict()
    other = shuffled(urls[: -change.get("shards", len(urls))] or urls, seed=change.get("seed", 0))
    if "size" in change:
        other = other.with_epoch(30)
    with pytest.raises(StateError, match=message):
        other.load_state_dict(state)


def test_other_workers_and_other_versions_are_refused(urls):
    with pytest.raises(StateError, match="num_workers: 1 in the state, 2 here"):
        of_workers(shuffled(urls), 2).load_state_dict(of_workers(shuffled(urls), 0).state_dict())
    with pytest.raises(StateError, match="version"):
        shuffled(urls).load_state_dict({"version": 99})


def test_shards_that_have_shrunk_are_noticed(tmp_path):
    urls = make_shards(tmp_path, [9])
    left = wds.WebDataset(urls)
    items = iter(left)
    list(islice(items, 8))
    make_shards(tmp_path, [5])
    resumed = wds.WebDataset(urls)
    resumed.load_state_dict(left.state_dict())
    del items
    with pytest.raises(StateError, match="8 samples of a pass that has 5"):
        list(resumed)


def test_workers_of_a_plain_loader_leave_no_state_in_the_dataset(urls):
    dataset = shuffled(urls)
    list(DataLoader(dataset, batch_size=None, num_workers=1))
    with pytest.raises(StateError, match=r"wds\.WebLoader"):
        dataset.state_dict()
    with pytest.raises(StateError, match="only pipelines have a state"):
        wds.WebLoader(wds.MockDataset(1, 3), batch_size=None).state_dict()


def test_a_loader_hands_out_exactly_what_the_dataset_yields(urls):
    loader = of_workers(wds.WebDataset(urls).map(key), 0)
    assert list(loader) == list(map(sample_key, range(sum(SIZES))))
    assert (loader.num_workers, loader.batch_size) == (0, None)
    assert list(wds.WebLoader(wds.MockDataset(1, 3), batch_size=None)) == [1, 1, 1]
