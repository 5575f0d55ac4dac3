"""Epochs of compat pipelines: orders, sizes, seeds, and where they go on."""

from __future__ import annotations

import copy
import os
import pickle
from collections import Counter
from itertools import count, islice
from multiprocessing import Value
from operator import itemgetter

import pytest
from torch.utils.data import DataLoader, IterableDataset

import shardwise.compat.webdataset as wds
from shardwise.compat.webdataset import left_out
from tests.support.open_clip import ShuffleByEpoch
from tests.support.tars import make_shards, sample_key
from tests.support.wds_shards import SIZES

NUM = sum(SIZES)


key = itemgetter("__key__")


def shuffled(urls, **options):
    return wds.WebDataset(urls, shardshuffle=True, **options).shuffle(20).map(key)


def read(loader, num=3):
    return [list(loader) for _ in range(num)]


@pytest.mark.parametrize("seed", [0, 7, "words"])
def test_one_seed_gives_the_same_epochs_in_every_run(urls, seed):
    assert read(shuffled(urls, seed=seed)) == read(shuffled(urls, seed=seed))


def test_the_seed_reaches_shards_and_samples(urls):
    assert list(shuffled(urls, seed=1)) != list(shuffled(urls, seed=2))
    in_order = [list(wds.WebDataset(urls, seed=seed).shuffle(20).map(key)) for seed in (1, 2)]
    assert in_order[0] != in_order[1]


def test_the_seed_of_the_environment_counts_where_none_is_given(urls, monkeypatch):
    monkeypatch.setenv("WDS_SEED", "11")
    assert list(shuffled(urls)) == list(shuffled(urls, seed=11)) != list(shuffled(urls, seed=12))
    assert list(shuffled(urls, detshuffle=True))  # a text as a seed is no TypeError


def test_rsample_and_random_mix_follow_the_seed(urls):
    def sampled(seed):
        return wds.WebDataset(urls, seed=seed).rsample(0.5).map(key)

    assert read(sampled(1)) == read(sampled(1))
    first, second, _ = read(sampled(1))
    assert first != second

    def mixed(seed):
        datasets = [wds.WebDataset(urls).map(key), wds.WebDataset(urls).map(lambda s: 0)]
        return wds.RandomMix(datasets, longest=True, seed=seed)

    assert read(mixed(1)) == read(mixed(1)) != read(mixed(2))
    first, second, _ = read(mixed(1))
    assert first != second
    assert Counter(first) == Counter(second)


@pytest.mark.parametrize("persistent", [False, True])
def test_detshuffle_goes_on_in_the_workers_of_each_epoch(urls, persistent):
    stages = [wds.SimpleShardList(urls), wds.detshuffle(100, 100, seed=3), wds.split_by_worker]
    loader = DataLoader(
        wds.DataPipeline(*stages, wds.map(lambda shard: shard["url"])),
        batch_size=None,
        num_workers=2,
        persistent_workers=persistent,
    )
    epochs = read(loader)
    assert len({str(epoch) for epoch in epochs}) == 3
    assert all(sorted(epoch) == urls for epoch in epochs)


def test_set_epoch_says_which_epoch_comes_next(urls):
    whole = read(shuffled(urls), num=4)
    dataset = shuffled(urls)
    dataset.set_epoch(3)
    assert list(dataset) == whole[3]
    dataset.set_epoch(1)
    assert read(dataset, num=2) == whole[1:3]


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_reaches_living_workers(urls, persistent):
    whole = read(wds.WebLoader(shuffled(urls), batch_size=None, num_workers=2), num=3)
    dataset = shuffled(urls)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    assert list(loader) == whole[0]
    dataset.set_epoch(2)
    assert list(loader) == whole[2]
    dataset.set_epoch(0)
    assert read(loader, num=2) == whole[:2]


def test_a_loader_that_was_given_up_halfway_begins_the_next_epoch(urls):
    whole = read(wds.WebLoader(shuffled(urls), batch_size=None, num_workers=2), num=2)
    loader = wds.WebLoader(shuffled(urls), batch_size=None, num_workers=2)
    assert list(islice(loader, 5)) == whole[0][:5]
    assert list(loader) == whole[1]


def test_with_epoch_goes_on_where_the_last_epoch_stopped(urls):
    dataset = wds.WebDataset(urls).map(key).with_epoch(40)
    first, second, third = read(dataset)
    keys = list(map(sample_key, range(NUM)))
    assert first + second + third == keys + keys[:15]


@pytest.mark.parametrize("loader", [DataLoader, wds.WebLoader])
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=["anew", "alive"])
def test_with_epoch_is_not_multiplied_by_workers_and_goes_on(urls, loader, options):
    dataset = shuffled(urls).with_epoch(35)
    epochs = read(loader(dataset, batch_size=None, num_workers=2, **options))
    assert [len(epoch) for epoch in epochs] == [35] * 3
    # Each worker reads its 50-odd samples once before one comes again.
    assert max(Counter(epochs[0] + epochs[1]).values()) == 1
    assert len(set().union(*epochs)) >= 100


def test_new_workers_go_on_where_an_epoch_ended_together_with_a_pass(tmp_path):
    urls = make_shards(tmp_path, [4, 4])
    dataset = wds.WebDataset(urls).map(key).with_epoch(8)
    epochs = read(DataLoader(dataset, batch_size=None, num_workers=2))
    assert [sorted(epoch) for epoch in epochs] == [list(map(sample_key, range(8)))] * 3


def process_id(sample):
    return os.getpid()


def test_the_workers_of_a_sized_dataset_live_on(urls):
    dataset = wds.WebDataset(urls).map(process_id).with_epoch(10)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    first, second = set(loader), set(loader)
    assert first == second
    assert len(first) == 2


def test_resampled_workers_do_not_read_a_long_way_again(urls, monkeypatch):
    monkeypatch.setattr("shardwise.compat.webdataset.pipeline._MAX_AGAIN", 15)
    dataset = wds.WebDataset(urls, resampled=True).map(key).with_epoch(40)
    epochs = read(DataLoader(dataset, batch_size=None, num_workers=1))
    assert [len(epoch) for epoch in epochs] == [40] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_with_epoch_is_shared_where_it_does_not_divide(urls):
    loader = DataLoader(wds.WebDataset(urls).with_epoch(7), batch_size=None, num_workers=2)
    assert [sum(1 for _ in loader) for _ in range(2)] == [7, 7]


def test_a_bare_pipeline_yields_its_epoch_in_each_worker(urls):
    # As programs expect that divide by the number of workers themselves.
    stages = [wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples()]
    dataset = wds.DataPipeline(*stages, wds.map(key)).with_epoch(10)
    assert len(list(DataLoader(dataset, batch_size=None, num_workers=2))) == 20


def batches_by_epoch(urls, shuffle, num_workers):
    stages = [wds.SimpleShardList(urls), shuffle, wds.split_by_node, wds.split_by_worker]
    samples = [
        wds.tarfile_to_samples(),
        wds.shuffle(5000),
        wds.map(key),
        wds.batched(4, None, False),
    ]
    # ceil(105 / 4) batches, in equal parts.
    dataset = wds.DataPipeline(*stages, *samples).with_epoch(-(-27 // max(1, num_workers)))
    return wds.WebLoader(
        dataset, batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0
    )


def test_epochs_that_the_program_shuffles_by_itself_cover_what_their_readers_can(urls):
    shuffle = ShuffleByEpoch(Value("i", 0))
    loader = batches_by_epoch(urls, shuffle, 2)
    sizes = dict(zip(urls, SIZES, strict=True))
    for epoch in range(8):
        shuffle.epoch.value = epoch
        keys = [k for batch in loader for k in batch]
        assert len(keys) == 2 * 14 * 4
        order = list(shuffle.order(urls, epoch))
        shares = [sum(sizes[url] for url in order[worker::2]) for worker in range(2)]
        # WebDataset covers less: it throws away the last samples of a share that are no batch.
        assert len(set(keys)) >= sum(min(share, 14 * 4) for share in shares)
    loader.close()


@pytest.mark.parametrize("stop", [3, 26])
def test_an_epoch_that_the_program_shuffles_is_gone_on_with(urls, stop):
    shuffle = ShuffleByEpoch(Value("i", 0))
    # 26 batches are in front of, 27 behind the border of the first pass: 105 samples.
    loader = batches_by_epoch(urls, shuffle, 0)
    list(loader)
    shuffle.epoch.value = 1
    epoch = list(loader)
    assert len({k for batch in epoch for k in batch}) == NUM
    left = batches_by_epoch(urls, shuffle, 0)
    left.set_epoch(1)
    assert list(islice(left, stop)) == epoch[:stop]
    resumed = batches_by_epoch(urls, shuffle, 0)
    resumed.load_state_dict(left.state_dict())
    assert list(resumed) == epoch[stop:]


def test_with_epoch_on_a_loader_counts_batches_and_goes_on(urls):
    dataset = wds.WebDataset(urls).map(key).listed(4)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2).with_epoch(9)
    epochs = read(loader)
    assert [len(epoch) for epoch in epochs] == [9] * 3
    keys = [k for epoch in epochs for batch in epoch for k in batch]
    assert sorted(keys) == list(map(sample_key, range(NUM)))


def test_resampling_leaves_no_sample_out(urls):
    dataset = wds.WebDataset(urls, resampled=True).map(key)
    keys = list(islice(dataset, 2 * NUM))
    # Two laps through the shards: all come once before one comes again.
    assert Counter(keys[:NUM]) == Counter(keys[NUM:]) == Counter(map(sample_key, range(NUM)))


def test_resampling_divides_the_shards_among_readers(urls, as_reader):
    found = []
    for rank in range(2):
        as_reader(rank, 2)
        shards = wds.DataPipeline(wds.WebDataset(urls, resampled=True).pipeline[0])
        found += [shard["url"] for shard in islice(shards, 5)]
    assert sorted(found) == urls


def test_resampled_shards_differ_unless_they_are_told_not_to(urls):
    def draw(**options):
        return [shard["url"] for shard in islice(wds.ResampledShards(urls, **options), 30)]

    assert draw() != draw()
    assert draw(deterministic=True) == draw(deterministic=True)
    assert draw(seed=5) == draw(seed=5) != draw(seed=6)
    assert draw(worker_seed=lambda: 1, seed=5) != draw(worker_seed=lambda: 2, seed=5)


def test_repeat_counts_passes_or_items(urls):
    dataset = wds.WebDataset(urls).map(key)
    assert len(list(dataset.repeat(nbatches=250))) == 250
    assert len(list(dataset.repeat(2, nbatches=130))) == 130
    assert len(list(islice(dataset.repeat(), 3 * NUM))) == 3 * NUM


def test_repeated_passes_have_orders_of_their_own(urls):
    keys = list(shuffled(urls).repeat(2))
    assert keys[:NUM] != keys[NUM:]
    assert sorted(keys[:NUM]) == sorted(keys[NUM:])


def test_a_length_pickles_and_is_what_len_says(urls):
    dataset = wds.WebDataset(urls).map(key)
    with pytest.raises(TypeError, match="with_length"):
        len(dataset)
    assert bool(dataset)
    with pytest.warns(UserWarning, match="with_epoch"):
        dataset = dataset.with_length(17)
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset), dataset.shuffle(2)):
        assert len(other) == 17
    loader = DataLoader(dataset.with_length(105, silent=True), batch_size=10, num_workers=1)
    assert len(loader) == 11


def test_a_pickled_pipeline_goes_on_with_the_next_epoch(urls):
    whole = read(shuffled(urls))
    dataset = shuffled(urls)
    list(dataset)
    assert read(pickle.loads(pickle.dumps(dataset)), num=2) == whole[1:]


def test_an_empty_pipeline_ends_however_often_it_is_repeated():
    assert list(wds.DataPipeline(lambda: iter([])).with_epoch(5)) == []
    with pytest.raises(ValueError, match="no stages"):
        list(wds.DataPipeline())


def test_epochs_and_lengths_as_objects_are_pipelines():
    numbers = wds.with_epoch(range(5), 3)
    assert [list(numbers) for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert list(pickle.loads(pickle.dumps(numbers))) == [4, 0, 1]
    # torch's DataLoader would warn of the samples of its second worker.
    with pytest.raises(TypeError, match="no len"):
        len(numbers)
    stated = wds.with_length(range(5), 17)
    assert (len(stated), list(stated)) == (17, [0, 1, 2, 3, 4])


class EndlessShards(IterableDataset):
    """A program's own shards, again and again."""

    def __init__(self, urls):
        self.urls = urls

    def __iter__(self):
        while True:
            yield from ({"url": url} for url in self.urls)


def nothing(sample):
    return None


def failing(sample):
    raise KeyError(sample["__key__"])


@pytest.mark.parametrize(
    "stage",
    [wds.select(nothing), wds.map(nothing), wds.map(failing, handler=wds.ignore_and_continue)],
)
def test_endless_shards_of_which_no_sample_passes_end_with_an_error(tmp_path, stage):
    (url,) = make_shards(tmp_path, [500])
    own = wds.DataPipeline(EndlessShards([url]), wds.tarfile_to_samples(), stage, wds.shuffle(10))
    resampled = wds.WebDataset(url, resampled=True).compose(stage).shuffle(10)
    for pipeline in (own, own.with_epoch(5), resampled):
        with pytest.raises(ValueError, match=r"let none of \d+ samples through"):
            next(iter(pipeline))


def test_a_predicate_behind_an_endless_loader_ends_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(left_out, "_MIN_IN_A_ROW", 1000)
    (url,) = make_shards(tmp_path, [500])
    for dataset in (wds.WebDataset(url, resampled=True), wds.WebDataset(url).batched(100)):
        loader = wds.WebLoader(dataset, batch_size=None).select(nothing).with_epoch(3)
        with pytest.raises(ValueError, match=r"let none of \d+ samples through"):
            next(iter(loader))


class Numbered(IterableDataset):
    """A sample after the other, none twice."""

    def __init__(self, entry):
        self.entry = entry

    def __iter__(self):
        return ({self.entry: str(number)} for number in count())


def test_a_rare_sample_is_waited_for_where_samples_have_keys(monkeypatch):
    monkeypatch.setattr(left_out, "_MIN_IN_A_ROW", 10)
    monkeypatch.setattr(left_out, "_MAX_IN_A_ROW", 100)
    monkeypatch.setattr(left_out, "_MAX_WITH_KEYS", 1000)
    for name, number, is_found in (("__key__", 900, True), ("cls", 90, True), ("cls", 110, False)):
        rare = wds.select(lambda s, name=name, number=number: s[name] == str(number))
        pipeline = wds.DataPipeline(Numbered(name), rare)
        if is_found:
            assert next(iter(pipeline)) == {name: str(number)}
            continue
        with pytest.raises(ValueError, match=r"let none of 100 samples through.*need a __key__"):
            next(iter(pipeline))
    with pytest.raises(ValueError, match="let none of 1000 samples through"):
        next(iter(wds.DataPipeline(Numbered("__key__"), wds.select(nothing))))


def test_endless_shards_without_a_sample_end_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(left_out, "_MIN_IN_A_ROW", 100)
    (empty,) = make_shards(tmp_path, [0])
    to_samples = wds.tarfile_to_samples(handler=wds.ignore_and_continue)
    for url in (empty, f"{tmp_path}/none.tar"):
        with pytest.raises(ValueError, match=r"the last \d+ shards gave no sample"):
            next(iter(wds.DataPipeline(EndlessShards([url]), to_samples)))


def test_a_predicate_before_a_shuffle_that_lets_nothing_through_is_told(urls):
    with pytest.raises(ValueError, match=f"let none of {NUM} samples through"):
        list(wds.WebDataset(urls).select(nothing).shuffle(10).with_epoch(5))
    for pipeline in (wds.WebDataset(urls), wds.WebDataset(urls).repeat()):
        with pytest.warns(UserWarning, match=f"let none of {NUM} samples through"):
            assert list(pipeline.select(nothing).shuffle(10)) == []


def test_a_rare_sample_is_found_behind_many_that_are_left_out(tmp_path):
    (url,) = make_shards(tmp_path, [500])
    seen = []

    def is_rare(sample):
        seen.append(sample["__key__"])
        return len(seen) in (4_500, 9_700)

    pipeline = wds.WebDataset(url, resampled=True).select(is_rare)
    assert len(list(islice(iter(pipeline.repeat()), 2))) == 2
