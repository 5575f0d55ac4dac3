"""What is no tar: tables and folders are shown, planned and measured; the rest names what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.commands import document, run
from tests.support.raw_tars import member
from tests.support.tars import make_shards

KINDS = ["parquet", "parquet directory", "lance", "folder", "list"]


def write_data(directory: Path, kind: str) -> Path:
    """A dataset of 40 samples that is no tar."""
    if kind in ("folder", "list"):
        for number in range(40):
            path = directory / "data" / "ab"[number % 2] / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(number))
        if kind == "folder":
            return directory / "data"
        paths = sorted(str(path) for path in (directory / "data").rglob("*.txt"))
        (directory / "list.csv").write_text("\n".join(["path", *paths]))
        return directory / "list.csv"
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"x": list(range(40)), "text": [str(i) for i in range(40)]})
    if kind == "lance":
        pytest.importorskip("lance").write_dataset(table, str(directory / "data.lance"))
        return directory / "data.lance"
    (directory / "data").mkdir()
    path = directory / "data" / "0.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=10)
    return path if kind == "parquet" else path.parent


@pytest.mark.parametrize("kind", KINDS)
def test_commands_take_tables_and_folders_or_say_that_they_are_for_tar(tmp_path, kind):
    data = write_data(tmp_path, kind)
    found = document("info", data)
    assert found["num_samples"] == 40
    opened = {"lance": sw.lance, "folder": sw.files, "list": sw.files}.get(kind, sw.parquet)(data)
    assert (found["fingerprint"], found["fields"]) == (opened.fingerprint, list(opened.fields))
    planned = document("plan", data, "--world-size", 2, "--batch-size", 8)
    assert planned["coverage"]["num_distinct"] == 40
    assert document("bench", data, "--batches", 2, "--num-threads", 1)["num_batches"] == 2
    for command in ("index", "verify", "doctor"):
        said = " ".join(run(command, data, exit_code=2).stderr.split())
        assert f"{command} is for tar shards" in said
        assert "`shardwise info`, `plan` and `bench` take it" in said
    said = run("info", data, "--accept-unfinished", exit_code=2).stderr
    assert "are for tar shards" in " ".join(said.split())


@pytest.mark.parametrize("command", ["index", "info", "plan", "verify", "bench", "doctor"])
def test_a_shard_without_an_end_is_refused_by_every_command_unless_it_is_accepted(
    tmp_path, command
):
    (tmp_path / "a.tar").write_bytes(member(b"a.txt", b"1") + member(b"b.txt", b"2"))
    more = ["--batches", 1] if command == "bench" else []
    result = run(command, tmp_path, *more, exit_code=1)
    assert (result.stdout + result.stderr).count("no end (two blocks of zeros)") == 1
    run(command, tmp_path, *more, "--accept-unfinished")
    # Also by the index that there is now.
    if command == "index":
        assert "no end" in run("info", tmp_path, exit_code=1).stderr
        run("index", tmp_path, exit_code=1)


@pytest.mark.parametrize("command", ["index", "info", "plan", "verify", "doctor"])
def test_an_index_without_its_shard_is_one_line(tmp_path, command):
    paths = make_shards(tmp_path, [2, 2])
    run("index", tmp_path)
    os.unlink(paths[0])
    (line,) = run(command, tmp_path, exit_code=1).stderr.splitlines()
    assert "remove the index files" in line
    assert paths[0] in line
