"""`shardwise verify`: finds what is damaged, names the place, and says what it can't know."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.commands import document, run
from tests.support.tars import make_shards


def test_sound_shards_have_no_problem(tmp_path):
    paths = make_shards(tmp_path, [3, 0, 2])
    run("index", tmp_path, "--digests")
    result = run("verify", tmp_path)
    assert result.stdout.startswith("3 shards without a problem")
    assert "without digests" not in result.stdout
    found = document("verify", tmp_path)
    assert found["problems"] == []
    assert found["num_bytes"] == sum(Path(path).stat().st_size for path in paths)
    assert found["num_with_digests"] == 3


def test_what_cannot_be_known_without_digests_is_said(tmp_path):
    make_shards(tmp_path, [3, 2])
    assert "2 shards without digests" in run("verify", tmp_path).stdout
    assert document("verify", tmp_path)["num_with_digests"] == 0


def test_a_changed_payload_is_found_with_its_key_field_and_offset(tmp_path):
    paths = make_shards(tmp_path, [3, 2])
    run("index", tmp_path, "--digests")
    stat = Path(paths[1]).stat()
    data = bytearray(Path(paths[1]).read_bytes())
    place = data.index(b"s00000004", 512 * 10)
    place = data.index(b"s00000004", place + 512)
    data[place] ^= 1
    Path(paths[1]).write_bytes(data)
    os.utime(paths[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found = document("verify", tmp_path, exit_code=1)
    (problem,) = found["problems"]
    assert problem["url"] == paths[1]
    assert (problem["key"], problem["field"]) == ("s00000004", "txt")
    assert problem["offset"] == place
    assert "CRC-32" in problem["message"]
    result = run("verify", tmp_path, exit_code=1)
    assert f"{paths[1]}: " in result.stdout
    assert f"(key 's00000004', field 'txt', offset {place})" in result.stdout
    assert "1 problem in 1 of 2 shards" in result.stdout
    assert result.stderr == ""


def test_every_damaged_shard_is_listed_and_the_bytes_are_of_the_others(tmp_path):
    paths = make_shards(tmp_path, [3, 2, 2])
    for path in paths[:2]:
        os.truncate(path, 900)
    found = document("verify", tmp_path, tmp_path / "gone.tar", exit_code=1)
    assert found["num_shards_with_problems"] == 3
    assert found["num_bytes"] == Path(paths[2]).stat().st_size
    assert {problem["url"] for problem in found["problems"]} == {
        *paths[:2],
        str(tmp_path / "gone.tar"),
    }


def test_counts_of_a_shard_list_are_held_against_the_shards(tmp_path):
    make_shards(tmp_path, [3, 2])
    (tmp_path / "sizes.json").write_text('{"part-000.tar": 3, "part-001.tar": 20}')
    found = document("verify", tmp_path / "sizes.json", exit_code=1)
    (problem,) = found["problems"]
    assert problem["url"] == str(tmp_path / "part-001.tar")
    assert "20 samples" in problem["message"]
