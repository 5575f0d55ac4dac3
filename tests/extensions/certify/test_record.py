"""`shardwise certify --record`: what a model was trained on, and `--compare` of two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.commands import document, run
from tests.support.coverage import lines_of
from tests.support.tars import make_shards

_PROGRAM = """
import shardwise as sw


def change(sample):
    return {**sample, "more": FACTOR}


def dataset():
    parts = {name: (sw.tar(f"FOLDER/{name}/*.tar"), 1.0) for name in ("web", "code")}
    return sw.mix(parts, until=100).map(change)
"""


@pytest.fixture
def program(tmp_path):
    for name in ("web", "code"):
        make_shards(tmp_path / name, [40, 30])
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM.replace("FOLDER", str(tmp_path)).replace("FACTOR", "2"))
    return path


def trained(program: Path, directory: Path) -> dict[str, object]:
    module: dict[str, object] = {"__name__": "program"}
    exec(compile(program.read_text(), str(program), "exec"), module)
    data = module["dataset"]()
    with sw.DataLoader(
        data, batch_size=10, rank=0, world_size=1, output="numpy", num_threads=0,
        coverage=directory,
    ) as loader:  # fmt: skip
        list(loader)
        return loader.stats()["sources"]


def test_a_record_says_which_data_how_often_in_which_order_and_by_which_code(tmp_path, program):
    sources = trained(program, tmp_path / "c")
    path = tmp_path / "record.json"
    run("certify", tmp_path / "c", f"{program}:dataset", "--record", path)
    record = json.loads(path.read_text())
    assert record["ok"]
    [order] = record["orders"]
    assert order["order"]["sampler"] == "mixture"
    assert order["samples_by_source"] == sources
    assert sum(each["samples"] for each in order["samples_by_source"].values()) == 100
    parts = order["data"]["parts"]
    assert {name: part["num_samples"] for name, part in parts.items()} == {"web": 70, "code": 70}
    assert all(part["version"] and part["fingerprint"] for part in parts.values())
    # The code that trained is the program's.
    assert order["recipes"] == [lines_of(tmp_path / "c")[0].recipe] == [order["data"]["recipe"]]
    assert order["left_out"] == {"left_out": 0, "skipped": 0, "replaced": 0, "dropped": 0}


def test_without_the_data_a_record_has_what_the_lines_say(tmp_path, program):
    trained(program, tmp_path / "c")
    path = tmp_path / "record.json"
    run("certify", tmp_path / "c", "--record", path)
    [order] = json.loads(path.read_text())["orders"]
    assert order["epochs"][0]["handed_out"] == 100
    assert len(order["recipes"]) == 1
    assert "data" not in order


def test_records_of_other_code_differ_in_the_recipe(tmp_path, program):
    records = []
    # Of other lengths: a `.pyc` is valid for a time of change, in seconds, and a length.
    for factor in ("2", "2", "30"):
        number = len(records)
        program.write_text(program.read_text().replace('"more": 2', f'"more": {factor}'))
        trained(program, tmp_path / f"c{number}")
        records.append(tmp_path / f"{number}.json")
        run("certify", tmp_path / f"c{number}", f"{program}:dataset", "--record", records[-1])
    found = document("certify", records[0], "--compare", records[2], exit_code=1)
    entries = {each["entry"] for each in found["differences"]}
    assert {"orders.0.recipes.0", "orders.0.data.recipe"} <= entries
    assert not any("fingerprint" in entry or "handed_out" in entry for entry in entries)
    assert document("certify", records[0], "--compare", records[1])["ok"]
    assert "equal" in run("certify", records[0], "--compare", records[0]).stdout


def test_entries_that_one_record_lacks_are_differences(tmp_path):
    for name, parts in (("one", {"a": 1}), ("other", {"a": 1, "b": 2})):
        (tmp_path / name).write_text(json.dumps({"version": 1, "parts": parts}))
    paths = tmp_path / "one", tmp_path / "other"
    for first, second in (paths, paths[::-1]):
        found = document("certify", first, "--compare", second, exit_code=1)
        assert [each["entry"] for each in found["differences"]] == ["parts.b"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}'])
def test_what_is_no_record_names_its_file(tmp_path, text):
    path = tmp_path / "odd.json"
    path.write_text(text)
    assert "odd.json" in run("certify", path, "--compare", path, exit_code=1).stderr
