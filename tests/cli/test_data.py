"""What is no tar: tables and folders are shown, planned and measured; the rest names what to do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.sources.files.list_file import SUFFIXES
from tests.support.commands import document, run
from tests.support.raw_tars import member
from tests.support.tars import make_shards

KINDS = ["parquet", "parquet directory", "lance", "folder", "list"]
FOREIGN = Path(__file__).parents[1] / "extensions" / "formats" / "foreign" / "data"


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
    verified = document("verify", data)
    assert (verified["num_samples"], verified["num_problems"]) == (40, 0)
    for command in ("index", "doctor"):
        said = " ".join(run(command, data, exit_code=2).stderr.split())
        assert f"{command} is for tar shards" in said
        assert "`shardwise verify` reads and checks it, `info`, `plan`, `bench`" in said
    said = run("info", data, "--accept-unfinished", exit_code=2).stderr
    assert "are for tar shards" in " ".join(said.split())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def data():\n    raise RuntimeError('no such split')", "no such split"),
        ("import no_such_module\ndata = 1", "No module named 'no_such_module'"),
        ("data = (", "was never closed"),
    ],
)
@pytest.mark.parametrize("command", ["info", "plan", "build"])
def test_an_error_of_the_user_s_code_is_a_line_that_names_its_place(
    tmp_path, code, message, command
):
    (tmp_path / "own.py").write_text(code)
    said = " ".join(run(command, f"{tmp_path}/own.py:data", exit_code=2).stderr.split())
    assert "own.py:data raised " in said
    assert message in said
    assert "own.py, line" in said


# In the shell, .jsonl.gz has samples.
@pytest.mark.parametrize("suffix", [s for s in SUFFIXES if s != ".jsonl.gz"])
def test_lists_of_files_are_opened_by_each_name_that_is_theirs_alone(tmp_path, suffix):
    (tmp_path / "a.txt").write_text("a")
    path = tmp_path / (f"list{suffix}" if suffix.startswith(".") else suffix)
    by_line = '{"path": "a.txt"}' if "json" in suffix else "path\na.txt"
    path.write_text(("u1 a.txt" if suffix == "wav.scp" else by_line) + "\n")
    assert document("info", path)["fingerprint"] == sw.files(path).fingerprint


@pytest.mark.parametrize("name", ["mds", "mds-zstd", "litdata", "litdata-rows", "tfrecord"])
def test_other_formats_are_shown_and_verified(tmp_path, name):
    data = Path(shutil.copytree(FOREIGN / name, tmp_path / name))
    assert document("info", data)["num_samples"] == 11
    assert document("verify", data)["num_samples"] == 11
    assert "11 samples read" in run("verify", data).stdout
    said = " ".join(run("doctor", data, exit_code=2).stderr.split())
    assert f"looks like what shardwise.{name.partition('-')[0]} opens" in said
    # Each shard but the damaged one is read on.
    path = sorted(each for each in data.iterdir() if each.suffix not in (".json", ".tfi"))[0]
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    found = document("verify", data, exit_code=1)
    assert (found["num_problems"], found["problems"][0]["url"]) == (1, str(path))
    assert 0 < found["num_samples"] < 11


def test_json_lines_are_samples_unless_they_list_files(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert document("info", tmp_path / "a.jsonl")["num_samples"] == 2
    assert document("info", tmp_path)["num_samples"] == 2
    (tmp_path / "b.jsonl").write_text('{"text": "c"}\n{')
    found = document("verify", tmp_path, exit_code=1)
    assert (found["num_samples"], found["num_problems"]) == (2, 1)
    assert found["problems"][0]["url"] == str(tmp_path / "b.jsonl")
    run("convert", tmp_path / "a.jsonl", tmp_path / "{shard:03d}.tar")
    assert [sample["text"] for sample in sw.tar(tmp_path / "000.tar").decode(text=str)] == [
        "a",
        "b",
    ]


def test_a_damaged_footer_does_not_end_the_verification_of_other_files(tmp_path):
    data = write_data(tmp_path, "parquet directory")
    shutil.copy(data / "0.parquet", data / "1.parquet")
    with (data / "0.parquet").open("r+b") as file:
        file.truncate(100)
    found = document("verify", data, exit_code=1)
    assert (found["num_shards"], found["num_samples"], found["num_problems"]) == (2, 40, 1)
    assert found["problems"][0]["url"] == str(data / "0.parquet")
    # Files that are sound, each by itself, and not alike: the problem is the dataset's.
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table({"other": [1]}), data / "0.parquet"
    )
    assert "other" in run("verify", data, exit_code=1).stderr


def test_an_index_json_by_itself_is_opened_and_tokens_say_what_to_name(tmp_path):
    assert document("verify", FOREIGN / "litdata" / "index.json")["num_samples"] == 11
    index = {"chunks": [], "config": {"item_loader": "TokensLoader"}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert "sw.tokens(path, block=...)" in run("info", tmp_path, exit_code=2).stderr
    with pytest.raises(sw.MissingShardError, match=r"has an index\.json .* sw\.mds reads"):
        sw.tar(tmp_path)


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


def test_a_module_that_changes_the_directory_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import os, shardwise as sw\nos.chdir('/')\ndata = sw.wrap([1, 2])\n"
    (tmp_path / "goes_elsewhere.py").write_text(code)
    assert document("info", "goes_elsewhere:data", "--json")["num_samples"] == 2
