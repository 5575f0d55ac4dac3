"""The command `widsindex`, run as a command, and the indexes that it makes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardwise as sw
from shardwise.compat import wids
from shardwise.compat.wids.shards import compute_file_md5sum
from shardwise.compat.wids.wids_index import widsindex
from tests.support.python_code import printed_by
from tests.support.tars import make_shards, payload, sample_key

SIZES = (6, 7, 8)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_shards("data", SIZES)
    return tmp_path


def run(*args, code=0, **options):
    done = CliRunner().invoke(widsindex, [str(arg) for arg in args], **options)
    assert done.exit_code == code, done.output
    return done


def read(path):
    return json.loads(Path(path).read_text())


def test_an_index_lists_shards_with_counts_bytes_and_hashes(here):
    output = run("create", "data/part-{000..002}.tar", "-o", "index.json").output
    assert "3 shards, 21 samples" in output
    index = read("index.json")
    assert (index["__kind__"], index["wids_version"]) == ("wids-shard-index-v1", 1)
    assert index["name"] == "data-part"
    assert index["shardlist"] == [
        {
            "url": f"data/part-00{i}.tar",
            "md5sum": compute_file_md5sum(f"data/part-00{i}.tar"),
            "nsamples": size,
            "filesize": os.path.getsize(f"data/part-00{i}.tar"),
        }
        for i, size in enumerate(SIZES)
    ]
    assert wids.ShardListDataset("index.json")[-1][".txt"] == sample_key(20)
    # sw.tar reads it, too.
    assert len(sw.tar("index.json")) == 21


def test_an_index_elsewhere_finds_the_shards_from_where_it_lies(here, tmp_path_factory):
    for output in (here / "data" / "index.json", tmp_path_factory.mktemp("else") / "index.json"):
        run("create", "data/part-000.tar", "-o", output)
        assert len(wids.ShardListDataset(str(output))) == 6
        assert wids.ShardListDataset(str(output))[0][".txt"] == sample_key(0)
    assert read(here / "data" / "index.json")["shardlist"][0]["url"] == "part-000.tar"


def test_names_info_and_base_are_kept(here):
    Path("info.txt").write_text("what it is")
    run("create", "data/part-000.tar", "-o", "i.json", "-n", "toy", "-i", "info.txt", "-b", here)
    index = read("i.json")
    assert (index["name"], index["info"], index["base"]) == ("toy", "what it is", str(here))
    os.mkdir("else")
    os.rename("i.json", "else/i.json")
    assert wids.ShardListDataset("else/i.json")[5][".txt"] == sample_key(5)


def test_files_come_from_stdin_and_hashes_can_be_left_out(here):
    run("create", "-", "--no-md5", input="data/part-001.tar\ndata/part-000.tar\n")
    assert [s["url"] for s in read("shardindex.json")["shardlist"]] == [
        "data/part-000.tar",
        "data/part-001.tar",
    ]
    assert "md5sum" not in read("shardindex.json")["shardlist"][0]
    run("create", "-", input="\n", code=2)


def test_a_damaged_or_missing_shard_ends_it_and_nothing_is_written(here):
    os.truncate("data/part-001.tar", 5 * 512)
    for file in ("data/part-*.tar", "data/none.tar"):
        done = run("create", file, "-o", "index.json", code=1)
        assert done.output.startswith("widsindex: ")
        assert "part-001" in done.output or "none.tar" in done.output
    assert not Path("index.json").exists()


def test_update_changes_what_is_named_and_nothing_else(here):
    run("create", "data/part-*.tar", "-o", "index.json")
    before = read("index.json")
    run("update", "index.json", "-n", "new")
    # wids wrote "keep": false with every update.
    assert read("index.json") == before | {"name": "new"}
    assert read("index.json.bak") == before
    run("update", "index.json", "-k", "-i", "info")
    assert read("index.json") == before | {"name": "new", "keep": True, "info": "info"}
    run("update", "index.json", "--nokeep")
    assert read("index.json")["keep"] is False


def test_update_moves_shards(here):
    run("create", "data/part-*.tar", "-o", "index.json")
    run("update", "index.json", "--dir", "/mnt/x/")
    assert read("index.json")["shardlist"][0]["url"] == "/mnt/x/part-000.tar"
    run("update", "index.json", "--nodir")
    assert read("index.json")["shardlist"][0]["url"] == "part-000.tar"
    run("update", "index.json", "--dir", "data")
    run("update", "index.json", "--rebase")
    assert read("index.json")["base"] == str(here / "data")
    assert wids.ShardListDataset("index.json")[0][".txt"] == sample_key(0)
    run("update", "index.json", "--dir", "x", "--nodir", code=2)


def test_info_shows_counts(here):
    run("create", "data/part-*.tar", "-o", "index.json", "-n", "toy")
    output = run("info", "index.json").output
    assert "total samples: 21" in output
    assert "name: toy" in output
    table = run("info", "-t", "index.json", "index.json").output.splitlines()
    assert len(table) == 3
    assert table[1].split("\t")[:4] == [
        "index.json",
        "toy",
        str(sum(s["filesize"] for s in read("index.json")["shardlist"])),
        "21",
    ]
    run("info", "none.json", code=1)


def test_sample_shows_one_sample(here):
    run("create", "data/part-*.tar", "-o", "index.json")
    assert f"'{sample_key(20)}'" in run("sample", "index.json", "20").output
    assert f"b'{sample_key(3)}'" in run("sample", "index.json", "3", "--raw").output
    assert run("sample", "index.json", "3", "-c", ".bin").stdout_bytes == payload(3, "bin")
    assert all(
        len(line) <= 20 for line in run("sample", "index.json", "3", "-w", 20).output.splitlines()
    )
    run("sample", "index.json", "21", code=2)
    run("sample", "index.json", "0", "-c", ".none", code=2)


def test_it_is_a_command_and_needs_no_torch(here):
    code = (
        "import sys; from shardwise.compat.wids.wids_index import widsindex\n"
        "try: widsindex(['create', 'data/part-000.tar'])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    assert "1 shards, 6 samples" in printed_by(code)
