"""`shardwise build`, `convert` and `reshard`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shardwise as sw
from tests.support.commands import document, run
from tests.support.tars import make_shards

RECIPE = """
def described():
    items = [{"__key__": f"{n:03d}", "cls": n} for n in range(20)]
    return {
        "source": items, "pattern": "out/{shard}.tar", "map": doubled,
        "samples_per_shard": 6, "on_error": "record",
    }

def doubled(sample):
    if sample["cls"] == 13:
        raise ValueError("thirteen")
    return {"cls": 2 * sample["cls"]}

def nothing():
    return {"source": []}
"""


def test_build_runs_what_a_function_describes_and_tells_of_failures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe_of_test.py").write_text(RECIPE)
    found = document("build", "recipe_of_test.py:described", "--jobs", 0, exit_code=1)
    assert (found["in"], found["out"], found["failed"]) == (20, 19, {"ValueError": 1})
    assert (
        "errors.parquet"
        in run("build", "recipe_of_test:described", "--jobs", 0, exit_code=1).stdout
    )
    numbers = [sample["cls"] for sample in sw.tar("out/manifest.swm").decode(cls=int)]
    assert numbers == [2 * n for n in range(20) if n != 13]


def test_what_build_can_not_run_is_a_usage_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe_of_test.py").write_text(RECIPE)
    for name, message in (
        ("recipe_of_test.py:nothing", "must return a dict"),
        ("recipe_of_test.py:absent", "has no 'absent'"),
        ("plain", "name a function"),
    ):
        assert message in run("build", name, exit_code=2).stderr


def test_convert_and_reshard_index_the_media_that_they_write(media_files, tmp_path):
    folder = tmp_path / "in"
    with sw.TarWriter(folder / "0.tar") as writer:
        writer.write({"__key__": "a", "mp4": media_files.read("b_frames")})
    first, again = tmp_path / "first", tmp_path / "again"
    document("convert", folder, first, "--media", "--jobs", 0)
    document("reshard", first, again, "--media", "--jobs", 0)
    sidecars = [(path / "000000.tar.media").read_bytes() for path in (first, again)]
    assert sidecars[0] == sidecars[1]
    assert "media=True" in run("convert", folder, "{shard}.parquet", "--media", exit_code=2).stderr


def test_convert_makes_tar_shards_of_a_table_and_parquet_of_them(tmp_path):
    table = {"name": ["a", "b", "c"], "n": [1, 2, 3], "ids": [[1], [2, 3], [4]], "raw": [b"x"] * 3}
    pq.write_table(pa.table(table), tmp_path / "in.parquet")
    found = document("convert", tmp_path / "in.parquet", tmp_path / "tars", "--jobs", 0)
    assert (found["out"], found["shards"]) == (3, 1)
    sample = sw.tar(f"{tmp_path}/tars/manifest.swm").decode(n=int)[1]
    assert (sample["name"], sample["n"], sample["raw"]) == (b"b", 2, b"x")
    back = sw.tar(f"{tmp_path}/tars").decode()[1]
    np.testing.assert_array_equal(back["ids.npy"], [2, 3])
    pattern = f"{tmp_path}/tables/{{shard}}.parquet"
    assert document("convert", tmp_path / "tars", pattern, "--jobs", 0)["out"] == 3
    assert sw.parquet(f"{tmp_path}/tables")[1]["raw"] == b"x"


def test_reshard_copies_the_samples_byte_for_byte(tmp_path):
    make_shards(tmp_path / "in", [7, 5, 9])
    found = document("reshard", tmp_path / "in", tmp_path / "out", "--samples-per-shard", 8)
    assert (found["out"], found["shards"]) == (21, 3)
    assert list(sw.tar(f"{tmp_path}/out/manifest.swm")) == list(sw.tar(f"{tmp_path}/in"))
    shown = run("reshard", tmp_path / "in", tmp_path / "out", "--samples-per-shard", 8).stdout
    assert "manifest.swm" in shown
    refused = run("reshard", tmp_path / "in", tmp_path / "out", exit_code=1).stderr
    assert "holds the output of another build:\n    " in refused
    tables = run("reshard", tmp_path / "in", f"{tmp_path}/{{shard}}.parquet", exit_code=2).stderr
    assert "shardwise convert" in tables


def test_convert_takes_the_suffixes_or_the_field_of_a_mixed_folder(tmp_path):
    for name in ("0.jpg", "0.json", "1.jpg", "1.json"):
        path = tmp_path / "in" / "cats" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    refused = run("convert", tmp_path / "in", tmp_path / "out", "--jobs", 0, exit_code=1)
    assert "--suffixes" in refused.stdout + refused.stderr
    options = ("--jobs", 0, "--suffixes", ".jpg")
    assert document("convert", tmp_path / "in", tmp_path / "images", *options)["out"] == 2
    options = ("--jobs", 0, "--field", "data")
    assert document("convert", tmp_path / "in", tmp_path / "all", *options)["out"] == 4
    assert "data" in sw.tar(tmp_path / "all").fields
    tars = run("convert", tmp_path / "all", tmp_path / "x", "--field", "a", exit_code=2)
    assert "folders of files" in " ".join(tars.stderr.split())
