"""What went wrong in released loaders, one named test each: it does not go wrong here.

Ten shards of 6 to 15 samples, as in the reports. Real ranks and worker processes of torch are in
tests/torch_layer; here are the same questions to the library's own loader.
"""

import pickle

import numpy as np
import pytest

import shardwise as sw
from tests.support.tars import make_shards, write_tar

SIZES = list(range(6, 16))
N = sum(SIZES)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    make_shards(directory, SIZES)
    return directory


def load(shards, *, epochs=1, **options):
    """Ids by epoch and batch, of one rank."""
    given = {"batch_size": 4, "rank": 0, "world_size": 1, "num_threads": 0, "output": "numpy"}
    loader = sw.DataLoader(sw.tar(shards).select("cls"), **{**given, **options})
    return [[batch["__index__"].tolist() for batch in loader] for _ in range(epochs)]


def flat(batches):
    return [i for batch in batches for i in batch]


def shard_of(ids):
    return np.searchsorted(np.cumsum(SIZES), ids, side="right")


# WebDataset


def test_webdataset_uneven_shards_gave_ranks_7_7_5_and_5_batches(shards):
    for workers in (0, 2):
        lengths = {
            len(load(shards, rank=rank, world_size=4, num_workers=workers, num_threads=None)[0])
            for rank in range(4 if workers == 0 else 2)
        }
        assert lengths == {-(-N // 16)}


def test_webdataset_demanded_an_explicit_nodesplitter_on_several_nodes(shards, monkeypatch):
    given = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        given += flat(load(shards, rank=None, world_size=None, remainder="uneven")[0])
    assert sorted(given) == list(range(N))


def test_webdataset_shardshuffle_gave_the_same_shard_order_every_epoch(shards):
    epochs = load(shards, epochs=3, shuffle="window", remainder="uneven")
    orders = [list(dict.fromkeys(shard_of(flat(epoch)).tolist())) for epoch in epochs]
    assert len({tuple(order) for order in orders}) == 3


def test_webdataset_seed_did_not_reach_the_sample_shuffle(shards):
    assert load(shards, shuffle=True, seed=1) == load(shards, shuffle=True, seed=1)
    assert load(shards, shuffle=True, seed=1) != load(shards, shuffle=True, seed=2)


def test_webdataset_a_rank_kept_the_same_shards_for_ever(shards):
    epochs = load(shards, epochs=8, shuffle=True, rank=0, world_size=2)
    assert len({tuple(sorted(flat(epoch))) for epoch in epochs}) == 8
    assert set(shard_of(np.array([i for epoch in epochs for i in flat(epoch)]))) == set(range(10))


def test_webdataset_resampled_missed_a_third_of_the_samples(shards):
    epochs = load(shards, epochs=3, shuffle=True, epoch_size=35, batch_size=5)
    assert sorted(i for epoch in epochs for i in flat(epoch)) == list(range(N))


def test_webdataset_with_epoch_was_multiplied_by_workers_and_began_at_the_first_shard(shards):
    options = {"epoch_size": 10, "batch_size": 5, "num_workers": 2, "num_threads": None}
    epochs = load(shards, epochs=3, **options)
    assert [len(flat(epoch)) for epoch in epochs] == [10, 10, 10]
    assert [i for epoch in epochs for i in flat(epoch)] == list(range(30))


def test_webdataset_with_length_did_not_pickle(shards):
    loader = sw.DataLoader(sw.tar(shards), batch_size=4, rank=0, world_size=1)
    assert len(pickle.loads(pickle.dumps(loader))) == len(loader) == -(-N // 4)


def test_webdataset_a_directory_url_hung(shards):
    assert len(sw.tar(shards)) == N


def test_webdataset_decode_rgb_claimed_h5_and_mpg(tmp_path):
    write_tar(tmp_path / "a.tar", [("0.h5", b"not"), ("0.mpg", b"pictures"), ("0.txt", b"text")])
    [sample] = sw.tar(tmp_path / "a.tar").decode()
    assert sample == {"__key__": "0", "h5": b"not", "mpg": b"pictures", "txt": "text"}


def test_webdataset_the_text_of_a_decoding_error_was_empty(tmp_path):
    write_tar(tmp_path / "a.tar", [("0.jpg", b"no picture")])
    with pytest.raises(sw.DataError, match=r"(?s).+a\.tar.*key '0'.*field 'jpg'"):
        sw.tar(tmp_path / "a.tar").decode(jpg=sw.image())[0]


def test_webdataset_a_cache_took_equal_base_names_for_one_shard(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        write_tar(tmp_path / split / "000.tar", [("0.txt", split.encode())])
    both = sw.tar([tmp_path / "train" / "000.tar", tmp_path / "val" / "000.tar"], index=tmp_path)
    assert [sample["txt"] for sample in both] == [b"train", b"val"]


# wids


def test_wids_gave_3_3_3_and_1_samples_to_ranks_that_were_told_3(tmp_path):
    data = sw.wrap(list(range(10)))
    lengths = []
    for rank in range(4):
        loader = sw.DataLoader(
            data, batch_size=1, remainder="pad", rank=rank, world_size=4, output="numpy"
        )
        lengths.append((len(loader), len(list(loader))))
    assert lengths == [(3, 3)] * 4


def test_wids_every_epoch_gave_a_rank_the_same_set(shards):
    first, second = load(shards, epochs=2, shuffle="full", rank=1, world_size=4)
    assert set(flat(first)) != set(flat(second))


def test_wids_names_over_100_characters_merged_or_vanished(tmp_path):
    stem = "x" * 120
    members = [(f"{stem}-{i}.txt", str(i).encode()) for i in range(5)]
    for form in ("gnu", "pax"):
        write_tar(tmp_path / f"{form}.tar", members, format=form)
        samples = list(sw.tar(tmp_path / f"{form}.tar"))
        assert [s["__key__"] for s in samples] == [f"{stem}-{i}" for i in range(5)]
        assert [s["txt"] for s in samples] == [b"0", b"1", b"2", b"3", b"4"]


def test_wids_minus_one_was_the_last_sample_of_the_first_shard(shards):
    data = sw.tar(shards)
    assert data[-1] == data[N - 1]
    with pytest.raises(IndexError):
        data[N]


# MosaicML Streaming


def test_mosaic_a_missing_shard_gave_a_silently_short_epoch(tmp_path):
    make_shards(tmp_path, SIZES)
    next(iter(sw.tar(tmp_path)))
    (tmp_path / "part-003.tar").unlink()
    names = [tmp_path / f"part-{i:03d}.tar" for i in range(10)]
    with pytest.raises(sw.MissingShardError, match=r"part-003\.tar"):
        list(sw.DataLoader(sw.tar(names), rank=0, world_size=1))


# LitData


def test_litdata_two_ranks_resumed_as_three_repeated_samples(shards):
    given = []
    states = []
    for rank in range(2):
        loader = sw.DataLoader(
            sw.tar(shards), batch_size=6, rank=rank, world_size=2, remainder="uneven", shuffle=True
        )
        for _, batch in zip(range(3), loader, strict=False):
            given += batch["__index__"].tolist()
        states.append(loader.state_dict())
        loader.close()
    assert states[0] == states[1]
    for rank in range(3):
        loader = sw.DataLoader(
            sw.tar(shards), batch_size=4, rank=rank, world_size=3, remainder="uneven", shuffle=True
        )
        loader.load_state_dict(states[0])
        given += [i for batch in loader for i in batch["__index__"].tolist()]
        loader.close()
    assert sorted(given) == list(range(N))


def test_litdata_another_number_of_workers_lost_samples_on_resume(shards):
    options = {"batch_size": 5, "rank": 0, "world_size": 1, "shuffle": True, "seed": 3}
    whole = flat(load(shards, **options)[0])
    with sw.DataLoader(sw.tar(shards), num_workers=2, **options) as loader:
        given = [i for _, b in zip(range(4), loader, strict=False) for i in b["__index__"].tolist()]
        state = loader.state_dict()
    with sw.DataLoader(sw.tar(shards), num_workers=3, **options) as loader:
        loader.load_state_dict(state)
        given += [i for batch in loader for i in batch["__index__"].tolist()]
    assert given == whole


def test_litdata_the_whole_tail_went_to_the_last_rank(shards):
    last = [load(shards, rank=r, world_size=4, remainder="uneven")[0][-1] for r in range(4)]
    sizes = [len(batch) for batch in last]
    assert sum(sizes) == N % 16
    assert max(sizes) - min(sizes) <= 1


# Megatron-Energon


def test_energon_a_stale_index_showed_only_in_the_middle_of_a_read(tmp_path):
    make_shards(tmp_path, [5, 5])
    list(sw.tar(tmp_path))
    make_shards(tmp_path, [5, 4])
    with pytest.raises(sw.StaleIndexError, match="shardwise index"):
        sw.DataLoader(sw.tar(tmp_path), batch_size=2, rank=0, world_size=1)


# Grain


@pytest.mark.parametrize("n", [65_537, 262_145, 1_048_577])
def test_grain_the_shuffle_was_no_bijection(n):
    plan = sw.Plan(n, batch_size=n, shuffle="full")
    assert np.bincount(plan.indices(0, 0, 0), minlength=n).max() == 1


def test_grain_seed_5_in_epoch_1_was_seed_6_in_epoch_0():
    five, six = (sw.Plan(1000, batch_size=1000, shuffle="full", seed=seed) for seed in (5, 6))
    assert (five.indices(1, 0, 0) == six.indices(0, 0, 0)).sum() < 20


def test_grain_a_record_was_dropped_though_nothing_was_to_be_dropped(shards):
    for remainder in ("pad", "uneven"):
        for batch_size in (1, 2, 4, 7, 64, 1000):
            batches = load(shards, batch_size=batch_size, remainder=remainder)[0]
            assert set(flat(batches)) == set(range(N))


# SPDL


def test_spdl_50_in_5_raised_45_came_out_and_no_error():
    def fails_now_and_then(sample):
        if sample["value"] % 10 == 0:
            raise ValueError("a bad one")
        return sample

    data = sw.wrap(list(range(50))).map(fails_now_and_then)
    options = {"batch_size": 5, "rank": 0, "world_size": 1, "output": "numpy"}
    with sw.DataLoader(data, **options) as loader, pytest.raises(sw.DataError, match="a bad one"):
        list(loader)
    with sw.DataLoader(data, on_error="skip", **options) as loader:
        assert sum(len(batch["__index__"]) for batch in loader) == 45
        assert loader.stats()["skipped"] == 5


# Frameworks


def test_accelerate_sharded_a_second_time_and_trained_on_half(shards):
    loader = sw.DataLoader(sw.tar(shards), batch_size=4, rank=0, world_size=2)
    assert loader._is_accelerate_prepared


def test_lightning_lost_a_batch_on_resume_where_there_was_no_length(shards):
    loader = sw.DataLoader(sw.tar(shards), batch_size=4, rank=0, world_size=1)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    # All batches are out: a fetcher that knows the length asks for no more, and nothing is lost.
    assert loader.state_dict()["epoch"] == 1
    loader.close()


def test_stateful_dataloader_asserted_the_number_of_workers(shards):
    loader = sw.DataLoader(sw.tar(shards), batch_size=4, num_workers=4, rank=0, world_size=1)
    other = sw.DataLoader(sw.tar(shards), batch_size=4, num_threads=0, rank=0, world_size=1)
    other.load_state_dict(loader.state_dict())


def test_torchdata_grain_and_lance_overwrote_the_global_random_state(shards):
    import random

    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    load(shards, shuffle=True)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
