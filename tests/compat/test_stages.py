"""Stages that WebDataset's own tests leave open."""

from __future__ import annotations

import pickle
import random
import time
import warnings

import numpy as np
import pytest
import torch

import shardwise.compat.webdataset as wds
from shardwise.base.errors import DataError
from shardwise.compat.webdataset import filters, handlers
from tests.support.tars import make_shards


def samples():
    return [{"__key__": str(i), "jpg": i, "cls": 10 * i} for i in range(4)]


def test_map_keeps_the_key_and_leaves_out_none():
    found = list(filters._map(samples(), lambda s: {"x": s["jpg"]} if s["jpg"] else None))
    assert found == [{"x": i, "__key__": str(i)} for i in (1, 2, 3)]


@pytest.mark.parametrize(("warns", "what"), [(False, "ignore"), (True, "warn")])
@pytest.mark.parametrize(("goes_on", "then"), [(True, "continue"), (False, "stop")])
def test_handlers_warn_and_go_on_as_their_names_say(warns, what, goes_on, then, monkeypatch):
    # Those of WebDataset sleep.
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it sleeps"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert getattr(handlers, f"{what}_and_{then}")(ValueError("lost")) is goes_on
    assert [str(each.message) for each in told] == ["ValueError('lost')"] * warns


def test_reraising_raises_the_same_exception():
    error = ValueError("lost")
    with pytest.raises(ValueError) as caught:
        handlers.reraise_exception(error)
    assert caught.value is error


@pytest.mark.parametrize(
    ("handler", "left"), [(wds.ignore_and_continue, [0, 2, 3]), (wds.ignore_and_stop, [0])]
)
def test_handlers_say_whether_to_go_on(handler, left):
    def fail(value):
        if value == 1:
            raise ValueError(value)
        return value

    def jpg(found):
        return [sample["jpg"] if isinstance(sample, dict) else sample[0] for sample in found]

    assert jpg(filters._map(samples(), lambda s: s | {"jpg": fail(s["jpg"])}, handler)) == left
    assert jpg(filters._map_dict(samples(), handler, jpg=fail)) == left
    tuples = filters._to_tuple(samples(), "jpg", "cls")
    assert jpg(filters._map_tuple(tuples, fail, handler=handler)) == left
    holes = [s if s["jpg"] != 1 else {"cls": 1} for s in samples()]
    assert jpg(filters._to_tuple(holes, "jpg", handler=handler)) == left
    assert len(list(filters._rename(holes, handler, new="jpg"))) == len(left)


def test_to_tuple_takes_alternatives_and_says_what_is_missing():
    assert next(filters._to_tuple(samples(), "png;jpg cls")) == (0, 0)
    assert next(filters._to_tuple(samples(), "png", "cls", missing_is_error=False)) == (None, 0)
    with pytest.raises(ValueError, match=r"none of \['png'\] in the sample '0'"):
        next(filters._to_tuple(samples(), "png", "cls"))
    with pytest.raises(ValueError, match="'jpg' is None in the sample 'a'"):
        list(filters._to_tuple([{"__key__": "a", "jpg": None}], "jpg"))


def test_shuffles_keep_all_items_and_mix_them():
    for size, initial in ((1, 1), (7, 3), (50, 50), (1000, 100)):
        found = list(filters._shuffle(range(200), size, initial, seed=1))
        assert sorted(found) == list(range(200))
        assert (found != list(range(200))) is (size > 1)
    with pytest.raises(ValueError, match="not both"):
        filters._shuffle([], rng=1, seed=2)


def test_a_small_start_gives_the_first_sample_soon():
    read = []

    def source():
        for i in range(100):
            read.append(i)
            yield i

    next(filters._shuffle(source(), 50, 5))
    assert len(read) <= 6


def test_batches_leave_as_soon_as_they_are_full():
    read = []

    def source():
        for i in range(10):
            read.append(i)
            yield (np.full(2, i), torch.full((2,), i), str(i))

    arrays, tensors, texts = next(filters._batched(source(), 3))
    assert len(read) == 3
    assert arrays.shape == (3, 2)
    assert isinstance(tensors, torch.Tensor)
    assert texts == ["0", "1", "2"]
    with pytest.raises(ValueError, match="batchsize=0"):
        list(filters._batched([], 0))


def test_what_can_t_be_a_batch_says_why():
    with pytest.raises(ValueError, match="different shapes"):
        filters.default_collation_fn([(np.zeros(2),), (np.zeros(3),)])
    with pytest.raises(ValueError, match="different fields"):
        filters.default_collation_fn([{"a": 1}, {"b": 1}])
    with pytest.raises(ValueError, match=r"\[1, 2\] items"):
        filters.default_collation_fn([(1,), (1, 2)])
    with pytest.raises(ValueError, match="different lengths"):
        list(filters._unbatched([([1, 2], [1])]))
    with pytest.raises(TypeError, match="unbatched"):
        list(filters._unlisted([(1, 2)]))


def test_info_and_log_keys_write_and_pass_on(tmp_path, capsys):
    assert list(filters._info(samples(), n=1, name="mine")) == samples()
    assert capsys.readouterr().err == "--- mine\n__key__ '0'\njpg 0\ncls 0\n"
    log = tmp_path / "log"
    assert list(filters._log_keys(samples(), str(log))) == samples()
    assert log.read_text().splitlines()[1] == "1\tNone\tNone\t1"


def test_select_associate_slice_and_rename():
    dataset = wds.FluidWrapper(samples()).select(lambda s: s["jpg"] > 1)
    dataset = dataset.associate({"2": {"more": 5}}).rename(image="jpg").slice(1)
    assert list(dataset) == [{"__key__": "2", "cls": 20, "more": 5, "image": 2}]


def test_caches_keep_whole_passes_only():
    runs = []

    def source():
        runs.append(1)
        return iter(range(5))

    pipeline = wds.DataPipeline(source, wds.Cached())
    next(iter(pipeline))
    assert list(pipeline) == list(pipeline) == list(range(5))
    stage = pipeline.stage(1)
    assert stage.cached == list(range(5))


def test_round_robin_and_random_mix_end_as_they_are_told():
    short, long = wds.MockDataset("s", 2), wds.MockDataset("l", 5)
    assert list(wds.RoundRobin([short, long])) == ["s", "l", "s", "l"]
    assert sorted(wds.RandomMix([short, long], longest=True)) == ["l"] * 5 + ["s"] * 2
    assert list(wds.RandomMix([short, long], probs=[0, 1])) == ["l"] * 5
    with pytest.raises(ValueError, match="probs"):
        list(wds.RandomMix([short, long], probs=[1]))


def test_pipelines_of_pipelines_have_another_order_each_epoch(tmp_path):
    urls = make_shards(tmp_path, [20, 20])
    parts = [wds.WebDataset(url).shuffle(20).map(lambda s: s["__key__"]) for url in urls]
    mixed = wds.FluidWrapper(wds.RoundRobin(parts))
    first, second = list(mixed), list(mixed)
    assert sorted(first) == sorted(second)
    assert first != second


def test_any_iterable_can_be_wrapped_and_pickles():
    assert list(wds.FluidWrapper(range(5)).batched(5, collation_fn=None)) == [[0, 1, 2, 3, 4]]
    assert list(pickle.loads(pickle.dumps(wds.FluidWrapper([1, 2]).slice(1)))) == [1]
    with pytest.raises(TypeError, match="is no stage"):
        list(wds.DataPipeline([1], 5))


def test_hand_written_readers_get_members_and_an_end(tmp_path):
    from shardwise.compat.webdataset import tariterators

    urls = make_shards(tmp_path, [2, 3])
    shards = [{"url": url} for url in urls]
    opened = tariterators.url_opener(shards)
    members = list(tariterators.tar_file_expander(opened))
    named = [member for member in members if member["fname"]]
    assert len(named) == 15
    assert [i for i, member in enumerate(members) if not member["fname"]] == [6, 16]
    assert tariterators.base_plus_ext("") == (None, None)
    grouped = list(tariterators.group_by_keys(members))
    assert grouped == list(tariterators.tarfile_samples(shards))
    assert list(tariterators.group_by_keys([*named[:6], {}, *named[6:]])) == grouped
    only = tariterators.group_by_keys(members, suffixes={"cls"})
    assert all(set(sample) == {"__key__", "__url__", "cls"} for sample in only)
    apart = [{"fname": name, "data": b"", "__url__": urls[0]} for name in ("a.x", "b.x", "a.y")]
    with pytest.raises(DataError, match="stand apart"):
        list(tariterators.group_by_keys(apart))
    going_on = tariterators.group_by_keys(apart, handler=wds.ignore_and_continue)
    assert [sample["__key__"] for sample in going_on] == ["a", "b"]


def test_members_are_selected_and_renamed_by_name(tmp_path):
    urls = make_shards(tmp_path, [2])
    (first, _) = wds.WebDataset(
        urls,
        rename_files=lambda name: name.replace(".txt", ".text"),
        select_files=lambda name: not name.endswith("bin"),
    )
    assert sorted(first) == ["__key__", "__local_path__", "__url__", "cls", "text"]


def test_rsample_outside_of_a_pipeline_draws_from_the_programs_random():
    kept = []
    for _ in range(2):
        random.seed(3)
        kept.append(list(wds.rsample(0.5)(range(100))))
    assert kept[0] == kept[1]


def test_readers_resample_and_shuffle_apart_where_programs_seed_random_alike(as_reader):
    drawn = []
    for rank in (0, 1, 0):
        as_reader(rank, 2)
        random.seed(3)
        drawn.append(
            [list(wds.resampled(9)(range(99))), list(wds.shuffle(99, 99)(iter(range(99))))]
        )
    assert drawn[0] == drawn[2]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_a_batch_has_a_number_of_samples(size):
    with pytest.raises(ValueError, match=f"batchsize={size}: a batch has at least one"):
        list(filters._batched(range(3), size))
