import json

import pytest

from shardwise.base.errors import DataError, MissingShardError, StorageError
from shardwise.sources.manifest import Shard
from shardwise.sources.tar.index.shard_lists import (
    ListedShard,
    check_counts,
    is_shard_list,
    read_shard_list,
)


@pytest.fixture
def write(tmp_path):
    def write(content, name="index.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def wids(*shards, **more):
    return {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [*shards], **more}


def timm(**splits):
    return {
        "splits": {
            name: {
                "name": name,
                "num_samples": sum(lengths),
                "filenames": [f"{name}-{i:02d}.tar" for i in range(len(lengths))],
                "shard_lengths": lengths,
            }
            for name, lengths in splits.items()
        }
    }


def test_a_wids_list_names_shards_beside_it_elsewhere_and_remote(write, tmp_path):
    path = write(
        wids(
            {"url": "a.tar", "nsamples": 3, "filesize": 10240, "md5sum": "0"},
            {"url": "sub/b.tar", "nsamples": 0},
            {"url": "/data/c.tar", "nsamples": 5},
            {"url": "file:///data/d%20e.tar", "nsamples": "6"},
            {"url": "s3://bucket/e.tar", "filesize": 7},
            name="train",
            base="ignored, as wids itself does",
        )
    )
    assert read_shard_list(path) == [
        ListedShard(f"{tmp_path}/a.tar", 3, 10240),
        ListedShard(f"{tmp_path}/sub/b.tar", 0, None),
        ListedShard("/data/c.tar", 5, None),
        ListedShard("/data/d e.tar", 6, None),
        ListedShard("s3://bucket/e.tar", None, 7),
    ]


def test_wids_lists_of_several_data_sets_are_joined(write, tmp_path):
    content = wids({"url": "a.tar", "nsamples": 1})
    content["datasets"] = [{"shardlist": [{"url": "b.tar", "nsamples": 2}], "weight": 1}]
    del content["__kind__"]
    assert read_shard_list(write(content)) == [
        ListedShard(f"{tmp_path}/a.tar", 1, None),
        ListedShard(f"{tmp_path}/b.tar", 2, None),
    ]


def test_a_wids_list_that_refers_to_another_list_says_so(write):
    content = wids(datasets=[{"source_url": "http://host/other.json"}])
    with pytest.raises(DataError, match=r"refers to another list, 'http://host/other.json'"):
        read_shard_list(write(content))


def test_open_clip_sizes_are_read_in_the_order_of_the_file(write, tmp_path):
    path = write({"00001.tar": 1000, "00000.tar": "999", "x/2.tar": 0}, "sizes.json")
    assert read_shard_list(path) == [
        ListedShard(f"{tmp_path}/00001.tar", 1000, None),
        ListedShard(f"{tmp_path}/00000.tar", 999, None),
        ListedShard(f"{tmp_path}/x/2.tar", 0, None),
    ]


def test_a_list_named_without_a_directory_names_shards_without_one(write, tmp_path, monkeypatch):
    write({"a.tar": 1}, "sizes.json")
    monkeypatch.chdir(tmp_path)
    assert read_shard_list("sizes.json") == [ListedShard("a.tar", 1, None)]


def test_a_split_of_a_timm_file_is_chosen_by_fragment(write, tmp_path):
    path = write(timm(train=[4, 6], validation=[3]), "_info.json")
    train = [
        ListedShard(f"{tmp_path}/train-00.tar", 4, None),
        ListedShard(f"{tmp_path}/train-01.tar", 6, None),
    ]
    assert read_shard_list(f"{path}#train") == train
    assert read_shard_list(f"{path}#validation")[0].num_samples == 3
    assert len(read_shard_list(write(timm(train=[1, 2, 3])))) == 3


def test_several_splits_are_never_mixed(write):
    path = write(timm(train=[4, 6], validation=[3]))
    with pytest.raises(ValueError, match="has the splits 'train', 'validation': name one"):
        read_shard_list(path)
    with pytest.raises(ValueError, match=r"split='test': .* has the splits 'train', 'validation'"):
        read_shard_list(f"{path}#test")
    with pytest.raises(ValueError, match=r"split='train': .* has no splits"):
        read_shard_list(write({"a.tar": 1}) + "#train")


def test_shard_lists_are_told_by_their_names():
    assert is_shard_list("d/index.json")
    assert is_shard_list("d#1/_info.json#train")
    assert not is_shard_list("d/x.tar")
    assert not is_shard_list("d/x.json#y.tar")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{not json", "not a JSON file"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ([], "not a shard list"),
        ({"a.tar": 1, "total": 1}, "not a shard list"),
        ({"a.tar": -1}, "count of 'a.tar' must be a whole number, not -1"),
        ({"a.tar": True}, "must be a whole number, not True"),
        ({"a.tar": None}, "must be a whole number, not None"),
        ({"a.tar": "9" * 5000}, "must be a whole number"),
        ({"shardlist": [], "wids_version": 1}, "the shard list is empty"),
        ({"shardlist": {}, "wids_version": 1}, "shardlist must be a list"),
        ({"shardlist": [], "wids_version": 2}, "version 2; "),
        ({"shardlist": [], "__kind__": "other"}, "kind 'other'"),
        (wids("a.tar"), "shard 0 must be a dict, not 'a.tar'"),
        (wids({"nsamples": 3}), "the url of shard 0 must be a str, not None"),
        (wids({"url": "a.tar", "nsamples": "3.0"}), "count of 'a.tar'"),
        (wids({"url": "a.tar", "filesize": []}), "count of 'a.tar'"),
        (wids(datasets=[3]), "an entry of datasets must be a dict"),
        ({"splits": []}, "splits must be a dict"),
        ({"splits": {"t": 3}}, "the split 't' must be a dict"),
        ({"splits": {"t": {"filenames": ["a.tar"]}}}, "shard_lengths of the split 't'"),
        (
            {"splits": {"t": {"filenames": ["a.tar"], "shard_lengths": [1, 2]}}},
            "has 1 filenames and 2 shard_lengths",
        ),
        ({"splits": {"t": {"filenames": [1], "shard_lengths": [1]}}}, "a filename of the split"),
        (
            {"splits": {"t": {"filenames": ["a.tar"], "shard_lengths": [1], "num_samples": 2}}},
            "has num_samples 2, its shard_lengths sum up to 1",
        ),
    ],
)
def test_malformed_lists_say_what_is_wrong_and_where(write, content, problem):
    path = write(content)
    with pytest.raises(DataError, match=problem) as caught:
        read_shard_list(path)
    assert caught.value.url == path


@pytest.mark.parametrize("name", ["../x.tar", "a/../../x.tar", "~/x.tar", "~root/x.tar"])
def test_names_do_not_lead_out_of_the_directory(write, name):
    for content in (
        wids({"url": name, "nsamples": 1}),
        {name: 1},
        {"splits": {"t": {"filenames": [name], "shard_lengths": [1]}}},
    ):
        with pytest.raises(DataError, match="leads out of the list's directory"):
            read_shard_list(write(content))


@pytest.mark.parametrize(
    "name", ["/etc/x.tar", "file:///etc/x.tar", "s3://b/x.tar", "pipe:rm x.tar"]
)
def test_only_wids_lists_name_files_elsewhere(write, name):
    with pytest.raises(DataError, match="must be relative to the list's directory"):
        read_shard_list(write({name: 1}))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("/data/../etc/x.tar", "leads out"),
        ("file:///a/%2e%2e/x", "leads out"),
        ("pipe:curl http://h/x.tar", "commands are not run"),
        ("", "commands are not run"),
        ("a\0.tar", "commands are not run"),
    ],
)
def test_absolute_names_do_not_climb_and_commands_are_refused(write, url, problem):
    with pytest.raises(DataError, match=problem):
        read_shard_list(write(wids({"url": url, "nsamples": 1})))


def test_a_missing_list_is_named(tmp_path):
    with pytest.raises(MissingShardError, match=r"no such file .*none\.json"):
        read_shard_list(str(tmp_path / "none.json"))


@pytest.mark.extension
def test_a_list_of_an_unknown_scheme_is_named():
    with pytest.raises(StorageError, match="'nosuch' is not supported"):
        read_shard_list("nosuch://bucket/index.json")


def test_counts_are_held_against_the_shards():
    actual = [Shard("d/a.tar", 3, 100), Shard("d/b.tar", 4, 200)]
    check_counts(
        [ListedShard("d/a.tar", 3, None), ListedShard("d/b.tar", None, 200)],
        actual,
    )
    with pytest.raises(DataError, match="says 5 samples, the shard has 4") as caught:
        check_counts([ListedShard("d/a.tar", 3, 100), ListedShard("d/b.tar", 5, 200)], actual)
    assert caught.value.url == "d/b.tar"
    with pytest.raises(DataError, match="says 99 bytes, the shard has 100"):
        check_counts([ListedShard("d/a.tar", 3, 99), ListedShard("d/b.tar", 4, 200)], actual)
