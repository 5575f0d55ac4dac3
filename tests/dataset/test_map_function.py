"""Transforms: what they get, what they may return, and randomness that is keyed."""

import functools
import pickle

import numpy as np
import pytest

from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from tests.support.memory_source import MemorySource, numbered_samples

NUM_SAMPLES = 12
IDS = np.array([4, 0, 11, 4])


def make():
    source = MemorySource(numbered_samples(NUM_SAMPLES), [5, 7])
    return Dataset(source).select("cls").decode(cls=int)


def draw(sample, rng):
    return {"draw": int(rng.integers(1 << 60))}


def draws(ds, ids=IDS, **keys):
    return ds.load(np.asarray(ids), **keys)["draw"]


def test_transforms_run_in_order_on_the_sample_with_its_key():
    seen = []

    def first(sample):
        seen.append(dict(sample))
        return {**sample, "cls": sample["cls"] + 1}

    def second(sample):
        return {**sample, "cls": sample["cls"] * 10, "new": "x"}

    ds = make().map(first).map(second)
    assert ds[4] == {"__key__": "key-00004", "cls": 50, "new": "x"}
    assert seen == [{"__key__": "key-00004", "cls": 4}]
    assert ds.load(IDS) == {
        "__key__": [f"key-{i:05d}" for i in IDS],
        "cls": [50, 10, 120, 50],
        "new": ["x"] * 4,
    }
    assert [sample["cls"] for sample in ds] == [(i + 1) * 10 for i in range(NUM_SAMPLES)]


def test_a_key_that_is_dropped_is_put_back_and_one_that_is_changed_stays():
    shared = {"x": 1}
    ds = make().map(lambda sample: shared)
    assert ds.load(IDS)["__key__"] == [f"key-{i:05d}" for i in IDS]
    assert shared == {"x": 1}
    ds = make().map(lambda sample: {"__key__": "k" + sample["__key__"]})
    assert ds.load(IDS)["__key__"] == [f"kkey-{i:05d}" for i in IDS]


def test_randomness_depends_on_seed_epoch_sample_and_place_alone():
    ds = make().map(draw)
    one = draws(ds)
    assert one == draws(ds) == draws(pickle.loads(pickle.dumps(ds)))
    assert one[0] == one[3]
    assert [draws(ds, [i])[0] for i in IDS] == one
    assert [ds[i]["draw"] for i in IDS] == one
    assert draws(ds.subset([11, 4]), [1, 0]) == [one[0], one[2]]


def test_other_seeds_epochs_samples_and_places_draw_otherwise():
    seen = []
    for place in range(3):
        ds = make()
        for _ in range(place):
            ds = ds.map(dict)
        ds = ds.map(draw)
        for seed in range(6):
            for epoch in range(6):
                seen += draws(ds, range(NUM_SAMPLES), seed=seed, epoch=epoch)
    assert len(set(seen)) == len(seen) == 3 * 36 * NUM_SAMPLES


def test_a_transform_may_spawn_generators_of_its_own():
    def spawn(sample, rng):
        return {"draw": [int(child.integers(1 << 60)) for child in rng.spawn(2)]}

    ds = make().map(spawn)
    assert draws(ds) == draws(ds)
    assert len({d for pair in draws(ds, range(5)) for d in pair}) == 10


def test_the_draws_stay_what_they_are():
    # A resumed training must see the augmentation it would have seen. (Raw words: numpy keeps
    # those of a bit generator for ever, the numbers made from them it may change.)
    ds = make().map(lambda sample, rng: {"draw": int(rng.bit_generator.random_raw())})
    assert draws(ds, [0, 11], seed=3, epoch=2) == [14122493643279074563, 3788321469814783444]


def test_a_generator_is_made_only_for_who_takes_one():
    class Object:
        def __call__(self, sample, *, rng):
            return {"has": isinstance(rng, np.random.Generator)}

    def optional(sample, rng=None):
        return {"has": rng is not None}

    def other(sample, generator=None):
        return {"has": generator is not None}

    def keywords(sample, **options):
        return {"has": bool(options)}

    assert make().map(Object())[0]["has"]
    assert make().map(Object().__call__)[0]["has"]
    assert make().map(optional)[0]["has"]
    assert make().map(functools.partial(optional))[0]["has"]
    assert not make().map(other)[0]["has"]
    assert not make().map(keywords)[0]["has"]
    assert make().map(dict)[0]["cls"] == 0


@pytest.mark.parametrize(
    "fn", [lambda **kwargs: {}, lambda sample, other: sample, lambda *, sample: sample, 3, "cls"]
)
def test_what_can_not_be_called_with_a_sample_is_refused_at_once(fn):
    with pytest.raises(TypeError, match=r"map\(\)"):
        make().map(fn)


def test_a_transforms_error_names_sample_transform_and_cause():
    def crop(sample):
        return 1 // (sample["cls"] - 4)

    ds = make().map(crop).subset([4])
    for read in (lambda: ds[0], lambda: list(ds), lambda: ds.load(np.array([0]))):
        with pytest.raises(DataError, match=r"crop raised ZeroDivisionError: ") as caught:
            read()
        error = caught.value
        assert isinstance(error.__cause__, ZeroDivisionError)
        place = (error.url, error.key, error.field, error.index)
        assert place == ("memory://set/000.mem", "key-00004", None, 0)


@pytest.mark.parametrize("result", [None, [1], "x", ("a", 1)])
def test_what_is_no_dict_is_refused_with_advice(result):
    ds = make().map(lambda sample: result if sample["cls"] == 4 else sample)
    for read in (lambda: ds[4], lambda: ds.load(IDS)):
        with pytest.raises(TypeError, match=rf"{type(result).__name__}.*'key-00004'.*subset\(\)"):
            read()
    assert ds[3]["cls"] == 3


def test_a_key_is_a_str():
    with pytest.raises(TypeError, match="the key 3 of the sample 'key-00000'"):
        make().map(lambda sample: {"__key__": 3})[0]


def test_samples_that_come_back_with_other_fields_are_told_apart():
    def odd(sample):
        return {"cls": 1, "more": 2} if sample["cls"] == 11 else {"cls": 1}

    with pytest.raises(DataError, match=r"has 'more', unlike the sample 'key-00004'") as caught:
        make().map(odd).load(IDS)
    assert (caught.value.key, caught.value.index) == ("key-00011", 11)
    with pytest.raises(DataError, match=r"lacks 'more', unlike the sample 'key-00011'"):
        make().map(odd).load(IDS[::-1][1:])
    # One by one each is what it is.
    assert make().map(odd)[11]["more"] == 2


def test_the_order_of_fields_within_a_sample_does_not_matter():
    def turned(sample):
        return {"b": 2, "a": 1} if sample["cls"] == 11 else {"a": 1, "b": 2}

    columns = make().map(turned).load(IDS)
    assert (columns["a"], columns["b"]) == ([1] * 4, [2] * 4)


def test_no_samples_have_no_fields_after_a_transform():
    assert make().map(dict).load(np.empty(0, dtype=np.int64)) == {"__key__": []}
