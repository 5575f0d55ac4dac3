"""`shardwise index --merge`, and the commands on the manifest file that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from tests.support.commands import document, run
from tests.support.tars import make_shards


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


def test_a_name_that_is_no_manifest_s_is_a_usage_error(tmp_path):
    make_shards(tmp_path, [3])
    result = run("index", tmp_path, "--merge", tmp_path / "a.json", exit_code=2)
    assert "must end in '.swm'" in result.stderr.replace("\n", " ")


def test_the_commands_take_it(manifest):
    assert document("info", manifest)["num_samples"] == 5
    assert document("info", manifest)["fingerprint"] == sw.tar(manifest).fingerprint
    assert document("verify", manifest)["num_problems"] == 0
    assert document("doctor", manifest)["num_errors"] == 0
    assert document("plan", manifest, "--world-size", 2, "--batch-size", 1)["num_samples"] == 5


def replace(path: Path) -> None:
    make_shards(path.parent / "new", [3], start=70)
    (path.parent / "new" / path.name).replace(path)
    run("index", path, "--force")


@pytest.mark.parametrize("damage", [replace, Path.unlink])
def test_a_shard_that_is_not_the_listed_one_is_a_problem(manifest, damage):
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
