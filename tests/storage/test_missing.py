"""Missing local files are counted, and answered with what there is instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.storage.missing import explain_missing, near_names
from tests.support.tars import make_shards


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "wds").mkdir()
    for number, url in enumerate(make_shards(tmp_path / "wds", [2, 2, 2])):
        Path(url).rename(tmp_path / "wds" / f"train-{number:04d}.tar")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message_of(dataset):
    with pytest.raises(sw.MissingShardError) as caught:
        len(dataset)
    return str(caught.value)


@pytest.mark.parametrize("as_list", [False, True])
def test_missing_shards_are_counted_and_those_there_are_named(folder, as_list):
    names = "wds/train-{0000..0009}.tar"
    urls = [names.replace("{0000..0009}", f"{n:04d}") for n in range(10)] if as_list else names
    text = message_of(sw.tar(urls))
    assert text.startswith(f"7 of 10 files are missing in the working directory {str(folder)!r}")
    assert "the first is 'wds/train-0003.tar'" in text
    assert "; there: 'wds/train-0000.tar' to 'wds/train-0002.tar' (url 'wds/train-0003" in text


def test_shards_of_which_none_is_there_have_near_names(folder):
    text = message_of(sw.tar("wds/trein-{0000..0002}.tar"))
    assert "3 of 3 files are missing" in text
    assert re.search(r"; near it: 'wds/train-000\d\.tar', 'wds/train-000\d\.tar' \(", text)
    text = message_of(sw.tar("wsd/train-{0000..0002}.tar"))
    assert "; there is no directory 'wsd'; near it: 'wds' (" in text


@pytest.mark.parametrize("url", ["train-000.tar", "trein-*.tar", "train-0001.swm"])
def test_near_names_are_those_of_the_directory(folder, url):
    with pytest.raises(sw.MissingShardError, match=r"; near it: 'wds/train-000\d\.tar'"):
        len(sw.tar(f"wds/{url}"))


@pytest.mark.extension
def test_every_source_names_what_is_near(folder):
    for make in (
        lambda: sw.tfrecord("wds/train-0001.tfrecord"),
        lambda: sw.tokens("wds/train-0001.bin", block=3, dtype="uint16"),
    ):
        with pytest.raises(sw.MissingShardError, match=r"; near it: 'wds/train-000\d\.tar'"):
            len(make())


def test_a_directory_that_is_misspelt_has_near_names(folder):
    with pytest.raises(sw.MissingShardError, match=r"no directory 'wsd'; near it: 'wds'"):
        sw.tar("wsd/*.tar")
    with pytest.raises(sw.StorageError, match=r"no directory 'wsd'; near it: 'wds'"):
        len(sw.files("wsd"))


@pytest.mark.extension
def test_a_directory_of_another_format_that_is_misspelt_has_near_names(folder):
    for make in (sw.mds, sw.litdata):
        with pytest.raises(sw.MissingShardError, match=r"no directory 'wsd'; near it: 'wds'"):
            len(make("wsd"))


@pytest.mark.extension
def test_a_missing_parquet_file_has_near_names(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "train.parquet").write_bytes(b"")
    with pytest.raises(sw.MissingShardError, match=r"near it: '.*/train\.parquet'"):
        len(sw.parquet(tmp_path / "tran.parquet"))


def test_remote_files_and_those_that_are_there_keep_their_own_error(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"")
    for url in ("s3://bucket/a.tar", str(tmp_path / "a.tar"), ""):
        with pytest.raises(sw.MissingShardError) as caught, explain_missing([url]):
            raise sw.MissingShardError("no such file", url=url or None)
        assert caught.value.reason == "no such file"


def test_nothing_near_says_nothing(tmp_path):
    (tmp_path / "a.tar.swi").write_bytes(b"")
    assert near_names(str(tmp_path / "a.tar")) == ""
    assert (
        near_names(str(tmp_path / "zzz" / "b"))
        == f"; there is no directory {str(tmp_path / 'zzz')!r}"
    )
    assert near_names(str(tmp_path / "*" / "a.tar")) == ""
