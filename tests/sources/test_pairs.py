"""Pictures with files of the same stem beside them are one sample each."""

from __future__ import annotations

import pickle

import pytest

import shardwise as sw
from shardwise.base.errors import DataError, StaleIndexError
from shardwise.testing import check_source
from tests.support.commands import run


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def test_files_of_one_stem_are_one_sample(tmp_path, caplog):
    write(tmp_path, "b.jpg", "b.json", "b.txt", "a.JPG", "a.json", "c.png", "c.txt")
    ds = sw.files(tmp_path, pairs=True)
    assert ds.source.fields == ("image", "json", "txt")
    assert [sample["__key__"] for sample in ds] == ["a.JPG", "b.jpg", "c.png"]
    assert ds[1] == {"__key__": "b.jpg", "image": b"b.jpg", "json": b"b.json", "txt": b"b.txt"}
    assert "txt" not in ds[0]
    assert "1 of 3 samples have no .json" in caplog.text
    assert "1 of 3 samples have no .txt" in caplog.text
    check_source(ds.source)
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.fingerprint == ds.fingerprint != sw.files(tmp_path, field="data").fingerprint
    with sw.DataLoader(ds.select("image", "json"), 2, rank=0, world_size=1) as loader:
        with pytest.raises(DataError, match="json"):
            list(loader)


def test_classes_have_pairs_and_suffixes_name_the_samples(tmp_path):
    write(tmp_path, "cat/1.npy", "cat/1.json", "dog/1.npy", "dog/1.json", "dog/2.npy", "dog/2.json")
    ds = sw.files(tmp_path, pairs=True, suffixes=(".npy",))
    assert ds.source.fields == ("npy", "json", "cls", "class")
    assert [(s["cls"], s["json"]) for s in ds] == [
        (0, b"cat/1.json"),
        (1, b"dog/1.json"),
        (1, b"dog/2.json"),
    ]
    write(tmp_path, "dog/2.cls")
    with pytest.raises(DataError, match="second field 'cls'"):
        len(sw.files(tmp_path, pairs=True, suffixes=(".npy",)))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a.jpg", "b.json", "c.txt"), "2 files belong to no picture, sound or video"),
        (("a.jpg", "a.png"), "two files of one sample"),
        (("a.jpg", "a.json", "a.JSON"), "two files of one sample"),
        (("a.jpg", "b.mp4"), "several kinds"),
    ],
)
def test_files_that_are_no_pairs_are_refused(tmp_path, names, said):
    with pytest.raises(DataError, match=said):
        len(sw.files(write(tmp_path, *names), pairs=True))


def test_a_list_has_no_pairs_and_a_file_written_since_is_no_part_of_one(tmp_path):
    (tmp_path / "list.csv").write_text("path\na.jpg\n")
    with pytest.raises(ValueError, match="pairs=True is for directories"):
        sw.files(tmp_path / "list.csv", pairs=True)
    (tmp_path / "list.csv").unlink()
    ds = sw.files(write(tmp_path, "a.jpg", "a.json"), pairs=True)
    assert ds[0]["json"] == b"a.json"
    (tmp_path / "a.json").write_text("other")
    with pytest.raises(StaleIndexError):
        ds[0]


@pytest.mark.extension
def test_convert_makes_shards_of_pairs(tmp_path):
    write(tmp_path / "in", "a.jpg", "a.txt", "b.jpg", "b.txt")
    run("convert", tmp_path / "in", tmp_path / "{shard:03d}.tar", "--pairs")
    found = [(s["image"], s["txt"]) for s in sw.tar(tmp_path / "000.tar")]
    assert found == [(b"a.jpg", b"a.txt"), (b"b.jpg", b"b.txt")]
