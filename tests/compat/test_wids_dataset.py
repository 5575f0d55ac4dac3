"""`ShardListDataset`: samples by number from lists and indexes, and what is wrong with either."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.utils.data

from shardwise import DataError, MissingShardError, StorageError
from shardwise.compat import wids
from shardwise.compat.wids.wids import IndexedTarSamples, LRUShards, compute_num_samples
from tests.support.tars import make_shards, payload, sample_key, write_tar

SIZES = (6, 7, 8)
N = sum(SIZES)


@pytest.fixture
def shards(tmp_path):
    paths = make_shards(tmp_path / "data", SIZES)
    return [
        {"url": path, "nsamples": size, "filesize": os.path.getsize(path)}
        for path, size in zip(paths, SIZES, strict=True)
    ]


def raw(shards, **options):
    return wids.ShardListDataset(shards, transformations=None, **options)


# Samples


def test_samples_are_dicts_of_streams_with_dotted_names_and_where_they_come_from(shards):
    sample = raw(shards)[7]
    assert sample.pop(".bin").read() == payload(7, "bin")
    assert sample.pop(".cls").read() == b"7"
    assert sample.pop(".txt").read() == payload(7, "txt")
    assert sample == {
        "__key__": sample_key(7),
        "__dataset__": None,
        "__index__": 7,
        "__shard__": shards[1]["url"],
        "__shardindex__": 1,
    }


def test_every_number_gives_its_sample_also_those_from_the_end(shards):
    dataset = raw(shards)
    assert len(dataset) == N
    assert [dataset[i]["__key__"] for i in range(N)] == [sample_key(g) for g in range(N)]
    assert [dataset[-i]["__key__"] for i in range(1, N + 1)] == [
        sample_key(N - i) for i in range(1, N + 1)
    ]
    # wids gave the last sample of the first shard.
    assert dataset[-1]["__index__"] == N - 1
    for number in (N, -N - 1):
        with pytest.raises(IndexError, match=str(N)):
            dataset[number]


def test_a_batch_is_read_together_and_is_the_same_as_one_by_one(shards):
    dataset = raw(shards)
    numbers = [20, 0, -1, 7, 7]
    together = dataset.__getitems__(numbers)
    for sample, number in zip(together, numbers, strict=True):
        one = dataset[number]
        assert sample[".bin"].read() == one[".bin"].read()
        assert sample["__index__"] == one["__index__"] == number % N
    assert dataset.__getitems__([]) == []


def test_a_subclass_that_changes_samples_changes_those_of_batches_too(shards):
    class Keys(wids.ShardListDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)["__key__"]

    loader = torch.utils.data.DataLoader(Keys(shards), batch_size=4)
    assert [key for batch in loader for key in batch] == [sample_key(g) for g in range(N)]


def test_transformations_run_in_turn_and_more_can_be_added(shards):
    def number(sample):
        return int(sample[".cls"].read())

    dataset = wids.ShardListDataset(shards, transformations=[number])
    assert dataset.add_transform(lambda n: n + 100) is dataset
    assert dataset[3] == 103
    assert wids.ShardListDataset(shards, transformations=number)[4] == 4


def test_without_a_word_fields_are_decoded_by_extension(shards):
    sample = wids.ShardListDataset(shards)[5]
    assert sample[".cls"] == 5
    assert sample[".txt"] == sample_key(5)
    assert isinstance(sample[".bin"], io.BytesIO)


def test_a_transformation_that_is_nothing_known_is_an_error(shards):
    with pytest.raises(TypeError, match="cv2"):
        wids.ShardListDataset(shards, transformations="cv2")


def test_names_of_any_length_and_dialect_stay_apart(tmp_path):
    # wids dropped what USTAR keeps in the prefix, and did not see GNU's and PAX's long names.
    stem = "a" * 60 + "/" + "b" * 60
    for dialect in ("ustar", "gnu", "pax"):
        members = [(f"{top}/{stem}.txt", top.encode()) for top in ("one", "two")]
        url = write_tar(tmp_path / f"{dialect}.tar", members, format=dialect)
        dataset = wids.ShardListDataset([{"url": url, "nsamples": 2}])
        assert [s["__key__"] for s in dataset] == [f"one/{stem}", f"two/{stem}"]
        assert [s[".txt"] for s in dataset] == ["one", "two"]


def test_local_shards_are_read_where_they_lie(shards, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("WIDS_CACHE", str(cache))
    for options in ({}, {"cache_dir": str(cache)}, {"localname": lambda _: str(cache / "x")}):
        dataset = raw(shards, **options)
        assert len([*dataset]) == N
        shard, row, desc = dataset.get_shard(8)
        assert (shard.path, row, desc) == (shards[1]["url"], 2, shards[1])
        assert len(shard) == 7
        assert shard[-1]["__key__"] == sample_key(12)
    assert not cache.exists()


def test_construction_says_nothing(shards, capfd):
    raw(shards)
    assert capfd.readouterr() == ("", "")


def test_a_file_url_is_a_local_shard(shards):
    for shard in shards:
        shard["url"] = Path(shard["url"]).as_uri()
    assert raw(shards)[-1]["__key__"] == sample_key(N - 1)


def test_a_shard_that_is_listed_twice_is_read_twice(shards):
    dataset = raw(shards + shards[:1])
    assert len(dataset) == N + 6
    assert dataset[N]["__key__"] == sample_key(0)


def test_a_closed_dataset_opens_its_shards_again(shards):
    dataset = raw(shards)
    assert dataset[0]["__key__"] == sample_key(0)
    dataset.close()
    assert dataset[3]["__key__"] == sample_key(3)
    assert dataset.get_stats() == (2, 2)


def test_misses_of_local_shards_cost_nothing_and_are_no_warning(shards, caplog):
    dataset = raw(shards, lru_size=1)
    with caplog.at_level(logging.WARNING, "shardwise"):
        for number in range(200):
            dataset[number * 7 % N]
    assert "lru_size" not in caplog.text


# With torch


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_read_every_sample_once(shards, method):
    dataset = wids.ShardListDataset(shards)
    dataset[0]
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=4,
        sampler=wids.ShardedSampler(dataset),
        num_workers=2,
        multiprocessing_context=method,
        collate_fn=keys_of,
    )
    assert sorted(key for batch in loader for key in batch) == [sample_key(g) for g in range(N)]


def keys_of(samples):
    return [sample["__key__"] for sample in samples]


def test_it_pickles_without_open_files(shards):
    dataset = raw(shards)
    dataset[0]
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.get_stats() == (0, 0)
    assert copy[9]["__key__"] == sample_key(9)


def test_threads_read_side_by_side(shards):
    dataset = raw(shards, lru_size=1)
    together = threading.Barrier(8)

    def read(first):
        together.wait(60)
        numbers = [(first + 5 * i) % N for i in range(200)]
        return all(dataset[n][".bin"].read() == payload(n, "bin") for n in numbers)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


# Wrong data


@pytest.mark.parametrize("wrong", [{"nsamples": 9}, {"nsamples": 5}, {"filesize": 512}])
def test_a_list_that_says_something_else_than_the_shard_is_an_error(shards, wrong):
    shards[1] |= wrong
    dataset = raw(shards)
    for read in (lambda: dataset[0], lambda: dataset.__getitems__([0])):
        with pytest.raises(DataError, match="the shard list says") as caught:
            read()
        assert caught.value.url == shards[1]["url"]


def test_a_shard_that_a_list_names_in_two_ways_is_refused(shards):
    again = {**shards[0], "url": f"file://{shards[0]['url']}"}
    with pytest.raises(ValueError, match="is named twice"):
        raw([*shards, again])[0]


def test_a_missing_shard_is_an_error_with_its_name(shards):
    shards[2]["url"] += "x.tar"
    with pytest.raises(MissingShardError, match="no such file"):
        raw(shards)[0]
    shards[2]["url"] = shards[2]["url"].replace("part", "{part,other}")
    with pytest.raises(MissingShardError):
        raw(shards)[0]


def test_a_shard_that_was_cut_is_an_error(shards):
    url = shards[1]["url"]
    os.truncate(url, os.path.getsize(url) // 2 // 512 * 512 - 512)
    del shards[1]["filesize"]
    with pytest.raises(DataError) as caught:
        raw(shards)[8]
    assert caught.value.url == url


def test_a_command_is_not_run(tmp_path):
    ran = tmp_path / "ran"
    dataset = raw([{"url": f"pipe:touch {ran}", "nsamples": 1}], localname=lambda _: str(ran))
    with pytest.raises(StorageError):
        dataset[0]
    assert not ran.exists()


@pytest.mark.parametrize("shards", ["text", [("a.tar", 3)], [{"url": "a.tar"}]])
def test_what_is_no_list_of_shards_is_an_error(shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError):
        wids.ShardListDataset(shards)


@pytest.mark.parametrize("count", [-1, 2**63, "x", None])
def test_a_count_that_can_not_be_one_is_an_error(count):
    with pytest.raises(DataError, match="'nsamples' must be a whole number"):
        wids.ShardListDataset([{"url": "a.tar", "nsamples": count}])


# Indexes


def write_index(path, **entries):
    path.write_text(json.dumps({"wids_version": 1, **entries}))
    return str(path)


def test_an_index_is_read_and_shards_lie_beside_it(shards, tmp_path, monkeypatch):
    listed = [shard | {"url": os.path.basename(shard["url"])} for shard in shards]
    index = write_index(tmp_path / "data" / "index.json", name="toy", shardlist=listed)
    dataset = raw(index)
    assert (len(dataset), dataset.dataset_name) == (N, "toy")
    assert dataset[20]["__shard__"] == shards[2]["url"]
    monkeypatch.chdir(tmp_path / "data")
    assert raw("index.json")[0]["__key__"] == sample_key(0)
    assert raw(Path(index))[0]["__key__"] == sample_key(0)
    with open(index) as file:
        assert raw(file)[0]["__key__"] == sample_key(0)


def test_the_base_of_an_index_counts_and_that_of_the_call_counts_more(shards, tmp_path):
    listed = [shard | {"url": os.path.basename(shard["url"])} for shard in shards]
    (tmp_path / "else").mkdir()
    index = write_index(
        tmp_path / "else" / "index.json", base=str(tmp_path / "data"), shardlist=listed
    )
    assert raw(index)[0]["__key__"] == sample_key(0)
    index = write_index(tmp_path / "else" / "index.json", base="/nowhere", shardlist=listed)
    assert raw(index, base=str(tmp_path / "data"))[0]["__key__"] == sample_key(0)
    assert raw(listed, base=str(tmp_path / "data"))[0]["__key__"] == sample_key(0)


def test_an_index_may_refer_to_others(shards, tmp_path):
    write_index(tmp_path / "data" / "other.json", name="other", shardlist=[shards[1]])
    index = write_index(
        tmp_path / "data" / "index.json",
        shardlist=[shards[0]],
        datasets=[
            {"source_url": "other.json", "weight": 2.0},
            {"shardlist": [shards[2]], "name": "third"},
        ],
    )
    dataset = raw(index)
    assert len(dataset) == N
    assert [dataset[i]["__dataset__"] for i in (0, 6, 13)] == [None, "other", "third"]
    assert dataset.shards[1]["weight"] == 2.0


def test_options_take_the_place_of_what_an_index_says(shards, tmp_path):
    index = write_index(tmp_path / "index.json", name="a", shardlist=shards)
    assert raw(index, options={"name": "b"}).dataset_name == "b"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "not a JSON"),
        ("[]", "JSON object"),
        ('{"wids_version": 2}', "version"),
        ('{"wids_version": 1, "shardlist": []}', "no shards"),
        ('{"wids_version": 1, "shardlist": [{"url": 3, "nsamples": 1}]}', "url"),
    ],
)
def test_a_malformed_index_is_an_error(tmp_path, content, match):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(DataError, match=match):
        wids.ShardListDataset(str(tmp_path / "index.json"))


# One shard


def test_one_tar_is_indexed_by_number(shards):
    from shardwise.compat.wids.wids import compute_file_md5sum

    url = shards[0]["url"]
    md5sum = compute_file_md5sum(url)
    samples = IndexedTarSamples(path=url, md5sum=md5sum, expected_size=6)
    assert (len(samples), samples[5]["__key__"]) == (6, sample_key(5))
    with open(url, "rb") as file:
        assert len(IndexedTarSamples(stream=file)) == 6
    with pytest.raises(IndexError):
        samples[6]
    with pytest.raises(DataError, match="MD5"):
        IndexedTarSamples(path=url, md5sum="0" * 32)
    with pytest.raises(DataError, match="6 samples, not 7"):
        IndexedTarSamples(path=url, expected_size=7)
    assert compute_num_samples(url) == 6


def test_shards_used_last_stay_open(shards):
    cache = LRUShards(2)
    first = cache.get_shard(shards[0]["url"])
    assert cache.last_missed
    assert cache.get_shard(shards[0]["url"]) is cache.lru[shards[0]["url"]] is first
    assert not cache.last_missed
    cache.get_shard(shards[1]["url"])
    cache.get_shard(shards[2]["url"])
    assert len(cache) == 2
    # Whoever still holds one goes on reading.
    assert first[0]["__key__"] == sample_key(0)
