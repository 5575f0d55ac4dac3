"""`sw.tar`: from shards on disk to samples."""

import pytest

import shardwise as sw
from tests.support.tars import make_shards, payload, sample_key


@pytest.fixture
def shards(tmp_path):
    return make_shards(tmp_path / "shards", [3, 0, 4])


def test_a_directory_of_shards_is_a_dataset(shards, tmp_path):
    ds = sw.tar(tmp_path / "shards").decode(cls=int)
    assert len(ds) == 7
    assert ds.default_shuffle == "window"
    assert ds.shard_sizes.tolist() == [3, 0, 4]
    for i, sample in enumerate(ds):
        assert sample == {
            "__key__": sample_key(i),
            "bin": payload(i, "bin"),
            "cls": i % 10,
            "txt": payload(i, "txt"),
        }
    assert ds.url_of(3) == shards[2]


def test_fields_that_are_not_asked_for_are_not_there(shards):
    ds = sw.tar(shards, fields=["cls"])
    assert ds.fields == ("cls",)
    assert ds[4] == {"__key__": sample_key(4), "cls": b"4"}
    with pytest.raises(ValueError, match="no field 'jpg'"):
        sw.tar(shards, fields=["jpg"])


def test_a_single_name_is_no_list_of_fields(shards):
    with pytest.raises(TypeError, match=r"fields='cls'.*\('cls',\)"):
        sw.tar(shards, fields="cls")


def test_the_index_may_lie_elsewhere(shards, tmp_path):
    assert len(sw.tar(shards, index=tmp_path / "index")) == 7
    assert sorted(map(str, (tmp_path / "shards").iterdir())) == shards


def test_missing_shards_are_named(tmp_path):
    with pytest.raises(sw.MissingShardError, match="gone"):
        len(sw.tar(tmp_path / "gone.tar"))
