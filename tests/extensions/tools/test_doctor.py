"""`shardwise doctor`: what is odd is told and is no failure; what reading refuses is one."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.commands import document, run
from tests.support.tars import make_shards, write_tar


def messages(found, level):
    return [entry["message"] for entry in found["findings"] if entry["level"] == level]


def test_oddities_are_told_with_a_hint_and_are_no_failure(tmp_path):
    write_tar(tmp_path / "a.tar", [("1.JPG", b"x"), ("2.jpg", b""), ("2.txt", b"x")])
    found = document("doctor", tmp_path)
    assert found["num_errors"] == 0
    assert "fields in upper case: 1" in messages(found, "odd")
    assert "empty payloads: 1" in messages(found, "odd")
    assert "1 of 2 samples lack the field 'txt'" in messages(found, "odd")
    assert all(entry["hint"] for entry in found["findings"])
    written = run("doctor", tmp_path).stdout
    assert "odd: " in written
    assert "0 errors and" in written


def test_a_shard_that_reading_refuses_is_an_error_and_comes_first(tmp_path):
    (path,) = make_shards(tmp_path, [3])
    write_tar(tmp_path / "a.tar", [("1.txt", b"x"), ("2.txt", b"x"), ("1.cls", b"1")])
    os.truncate(path, 900)
    found = document("doctor", path, tmp_path / "a.tar", exit_code=1)
    assert found["num_errors"] == 2
    assert [entry["level"] for entry in found["findings"][:2]] == ["error", "error"]
    assert "cut short" in found["findings"][0]["message"]
    assert [entry["url"] for entry in found["findings"]].count(path) == 1
    assert run("doctor", tmp_path, exit_code=1).stdout.startswith("error: ")


def test_an_index_that_does_not_fit_is_an_error_and_a_missing_one_is_odd(tmp_path):
    paths = make_shards(tmp_path, [3, 3, 3])
    run("index", *paths[:2])
    with open(paths[0], "ab") as file:
        file.write(bytes(512))
    Path(paths[1] + ".swi").write_bytes(b"")
    found = document("doctor", tmp_path, exit_code=1)
    stale, damaged = messages(found, "error")
    assert "the shard has changed since it was indexed" in stale
    assert "the index can't be used: the file is empty" in damaged
    assert "the index is missing" in messages(found, "odd")


def test_shards_with_other_fields_and_of_very_different_sizes_are_odd(tmp_path):
    make_shards(tmp_path / "a", [2, 2, 40], fields=("txt",))
    make_shards(tmp_path / "b", [2], fields=("cls",), start=100)
    found = messages(document("doctor", tmp_path / "a", tmp_path / "b"), "odd")
    assert "1 of 4 shards lack the field 'txt', this is the first" in found
    assert "3 of 4 shards lack the field 'cls', this is the first" in found
    assert "40 samples, half of the shards have less than 3" in found


def test_the_same_oddity_of_many_shards_is_one_line(tmp_path):
    make_shards(tmp_path, [2] * 30)
    written = run("doctor", tmp_path).stdout
    assert written.count("a small shard") == 1
    assert "(and 29 more shards)" in written
    found = document("doctor", tmp_path)
    assert sum("a small shard" in message for message in messages(found, "odd")) == 30


def test_a_look_writes_nothing(tmp_path):
    make_shards(tmp_path, [2])
    run("doctor", tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "part-000.tar"]
