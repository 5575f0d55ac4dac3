"""`shardwise index`: builds what is missing, refreshes what is stale, names what fails; merges."""

from __future__ import annotations

import os
import signal
import tarfile
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.sources.tar.index.shard_index import ShardIndex, index_path
from tests.support.commands import document, run, spawn
from tests.support.tars import make_shards
from tests.support.waiting import wait_for

GUARD_S = 120


def test_the_first_run_builds_and_the_second_finds_everything_fresh(tmp_path):
    paths = make_shards(tmp_path, [3, 0, 2])
    first = document("index", tmp_path)
    assert (first["num_built"], first["num_fresh"], first["num_failed"]) == (3, 0, 0)
    assert first["num_samples"] == 5
    assert first["fields"] == ["bin", "cls", "txt"]
    assert first["num_members_built"] == 15
    assert first["num_bytes"] == sum(Path(path).stat().st_size for path in paths)
    assert [shard["url"] for shard in first["shards"]] == paths
    second = document("index", tmp_path)
    assert (second["num_built"], second["num_fresh"]) == (0, 3)
    assert second["num_samples"] == 5
    assert second["num_members_built"] == 0


def test_a_shard_that_changed_is_indexed_again_and_only_that(tmp_path):
    make_shards(tmp_path, [3, 2])
    run("index", tmp_path)
    make_shards(tmp_path / "new", [4])
    (tmp_path / "new" / "part-000.tar").replace(tmp_path / "part-000.tar")
    found = document("index", tmp_path)
    assert [shard["status"] for shard in found["shards"]] == ["built", "fresh"]
    assert found["num_samples"] == 6


def test_the_indexes_go_into_the_directory_that_is_named(tmp_path):
    (path,) = make_shards(tmp_path / "data", [3])
    found = document("index", path, "--index", tmp_path / "made" / "here")
    made = index_path(path, str(tmp_path / "made" / "here"))
    assert found["shards"][0]["index"] == made
    assert ShardIndex.load(made).num_samples == 3
    assert list((tmp_path / "data").iterdir()) == [Path(path)]


def test_an_index_that_can_t_be_written_is_named(tmp_path):
    make_shards(tmp_path, [2])
    (tmp_path / "a-file").touch()
    result = run("index", tmp_path, "--index", tmp_path / "a-file" / "indexes", exit_code=1)
    assert "shardwise: the index" in result.stderr
    assert "can't be written: Not a directory" in result.stderr
    assert result.stderr.count("\n") == 1


def test_digests_and_force_make_fresh_ones_again(tmp_path):
    (path,) = make_shards(tmp_path, [3])
    run("index", path)
    assert document("index", path, "--digests")["num_built"] == 1
    assert ShardIndex.load(path + ".swi").header.has_digests
    assert document("index", path, "--digests")["num_fresh"] == 1
    assert document("index", path, "--force")["num_built"] == 1


def test_processes_make_the_same_indexes(tmp_path):
    paths = make_shards(tmp_path, [3, 2, 4])
    run("index", tmp_path, "--jobs", 1)
    alone = [Path(path + ".swi").read_bytes() for path in paths]
    run("index", tmp_path, "--force", "--jobs", 2)
    assert [Path(path + ".swi").read_bytes() for path in paths] == alone


def test_a_damaged_shard_is_named_and_the_others_are_indexed(tmp_path):
    paths = make_shards(tmp_path, [3, 2])
    Path(paths[0]).write_bytes(Path(paths[0]).read_bytes()[:700])
    found = document("index", tmp_path, exit_code=1)
    assert [shard["status"] for shard in found["shards"]] == ["failed", "built"]
    assert "cut short" in found["shards"][0]["error"]


def test_a_shard_that_is_not_there_is_named(tmp_path):
    (path,) = make_shards(tmp_path, [2])
    found = document("index", path, tmp_path / "gone.tar", exit_code=1)
    assert [shard["status"] for shard in found["shards"]] == ["built", "failed"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_leaves_whole_indexes_and_one_line(tmp_path, jobs):
    (first,) = make_shards(tmp_path, [2])
    # A minute's reading, of zeros that take no space.
    header = tarfile.TarInfo("1.bin")
    header.size = 1 << 36
    with (tmp_path / "part-001.tar").open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + header.size + 1024)
    process = spawn("index", tmp_path, "--digests", "--jobs", jobs)
    wait_for(Path(first + ".swi").exists, process=process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=GUARD_S)
    assert (process.returncode, out, err) == (130, b"", b"shardwise: interrupted\n")
    assert ShardIndex.load(first + ".swi").num_samples == 2
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".swi", ".tar", ".tar"]


@pytest.fixture
def manifest(tmp_path):
    make_shards(tmp_path / "data", [3, 0, 2])
    path = tmp_path / "train.swm"
    made = document("index", tmp_path / "data", "--merge", path)
    assert made["manifest"] == {"path": str(path), "fingerprint": sw.tar(path).fingerprint}
    return path


def test_the_manifest_is_of_the_shards_that_were_indexed(manifest, tmp_path):
    assert list(sw.tar(manifest)) == list(sw.tar(tmp_path / "data"))
    shown = run("index", tmp_path / "data", "--merge", manifest).stdout
    assert str(manifest) in shown.replace("\n", "")
    assert sw.tar(manifest).fingerprint in shown


def test_manifests_are_merged_into_one(manifest, tmp_path):
    make_shards(tmp_path / "more", [4], start=5)
    run("index", manifest, tmp_path / "more", "--merge", tmp_path / "all.swm")
    assert len(sw.tar(tmp_path / "all.swm")) == 9


def test_no_manifest_is_written_where_a_shard_failed(tmp_path):
    paths = make_shards(tmp_path, [3, 2])
    Path(paths[1]).write_bytes(b"x" * 1024)
    run("index", tmp_path, "--merge", tmp_path / "a.swm", exit_code=1)
    assert not (tmp_path / "a.swm").exists()


def test_a_name_that_no_manifest_may_have_is_a_usage_error(tmp_path):
    make_shards(tmp_path, [3])
    result = run("index", tmp_path, "--merge", tmp_path / "a.json", exit_code=2)
    assert "must end in '.swm'" in result.stderr.replace("\n", " ")


def test_the_commands_take_a_manifest(manifest):
    assert document("info", manifest)["num_samples"] == 5
    assert document("info", manifest)["fingerprint"] == sw.tar(manifest).fingerprint
    assert document("verify", manifest)["num_problems"] == 0
    assert document("doctor", manifest)["num_errors"] == 0
    assert document("plan", manifest, "--world-size", 2, "--batch-size", 1)["num_samples"] == 5


def replace_shard(path: Path) -> None:
    make_shards(path.parent / "new", [3], start=70)
    (path.parent / "new" / path.name).replace(path)
    run("index", path, "--force")


@pytest.mark.parametrize("damage", [replace_shard, Path.unlink])
def test_a_shard_that_is_not_the_one_in_the_manifest_is_a_problem(manifest, damage):
    damage(manifest.parent / "data" / "part-000.tar")
    problems = document("verify", manifest, exit_code=1)["problems"]
    assert [Path(problem["url"]).name for problem in problems] == ["part-000.tar"]
    assert document("doctor", manifest, exit_code=1)["num_errors"] == 1


@pytest.mark.parametrize("command", ["info", "verify", "doctor", "plan"])
def test_a_damaged_manifest_is_an_error(manifest, command):
    manifest.write_bytes(manifest.read_bytes()[:-1])
    assert "the manifest can't be used" in run(command, manifest, exit_code=1).stderr.replace(
        "\n", " "
    )
