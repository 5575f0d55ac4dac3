"""`shardwise plan`: the numbers are counted, and a plan that breaks its word is found out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.plan import Plan
from tests.support.commands import document, run
from tests.support.properties import examples
from tests.support.tars import make_shards


@pytest.mark.parametrize(("shuffle", "remainder"), [("none", "uneven"), ("window", "drop")])
def test_what_does_not_fill_a_batch_is_dropped_only_where_samples_are_shuffled(shuffle, remainder):
    found = document("plan", "--num-samples", 105, "--batch-size", 10, "--shuffle", shuffle)
    assert found["remainder"] == remainder


def test_a_plan_without_a_batch_for_each_rank_is_refused_as_the_loader_refuses_it(tmp_path):
    make_shards(tmp_path, [12])
    arguments = ("--world-size", 4, "--batch-size", 4, "--remainder", "drop")
    for data in ((tmp_path,), ("--num-samples", 12)):
        result = run("plan", *data, *arguments, exit_code=2)
        assert result.stdout == ""
        with pytest.raises(ValueError, match="no batch to give") as caught:
            sw.DataLoader(sw.tar(tmp_path), batch_size=4, rank=0, world_size=4, remainder="drop")
        assert " ".join(str(caught.value).split()) in " ".join(result.stderr.split())


@settings(max_examples=examples(40))
@given(
    num_samples=st.integers(1, 400),
    num_shards=st.integers(1, 12),
    world_size=st.integers(1, 6),
    batch_size=st.integers(1, 20),
    shuffle=st.sampled_from(["none", "full", "window"]),
    remainder=st.sampled_from(["drop", "pad", "uneven"]),
    seed=st.integers(-5, 5),
    epoch=st.integers(0, 3),
)
def test_the_counts_of_every_plan_agree_with_its_promises(
    num_samples, num_shards, world_size, batch_size, shuffle, remainder, seed, epoch
):
    arguments = [
        "plan", "--num-samples", num_samples, "--shards", num_shards, "--world-size", world_size,
        "--batch-size", batch_size, "--shuffle", shuffle, "--remainder", remainder,
        "--seed", seed, "--epoch", epoch,
    ]  # fmt: skip
    if remainder == "drop" and num_samples < world_size * batch_size:
        assert "no batch to give" in run(*arguments, exit_code=2).stderr
        return
    found = document(*arguments)
    coverage = found["coverage"]
    assert coverage["proved"]
    assert coverage["num_distinct"] + coverage["num_never"] == num_samples
    assert coverage["num_never"] == found["num_dropped"]
    assert coverage["num_repeats"] == 0
    num_rows = found["num_steps"] * world_size * batch_size
    num_padded = num_rows - num_samples if remainder == "pad" else 0
    assert coverage["num_padded"] == found["num_padded"] == num_padded
    by_shard = np.zeros(num_shards, dtype=int)
    for rank in found["ranks"]:
        assert sum(rank["shards"].values()) == rank["num_samples"]
        for shard, count in rank["shards"].items():
            assert count > 0, "a shard that it does not read"
            by_shard[int(shard)] += count
    assert by_shard.sum() == num_samples - found["num_dropped"]


def test_a_plan_that_reads_a_sample_twice_is_found_out(monkeypatch):
    honest = Plan.indices

    def careless(self, epoch, step, rank):
        ids = honest(self, epoch, step, rank)
        return np.where(ids == 17, 16, ids)

    monkeypatch.setattr(Plan, "indices", careless)
    result = run("plan", "--num-samples", 100, "--batch-size", 10, exit_code=1)
    assert "BROKEN, 1 repeat (" in result.stdout
    found = document("plan", "--num-samples", 100, "--batch-size", 10, exit_code=1)
    assert not found["coverage"]["proved"]
    assert found["coverage"]["num_repeats"] == 1
    assert found["coverage"]["num_never"] == 1


def test_a_plan_that_reads_what_is_not_there_is_found_out(monkeypatch):
    honest = Plan.indices
    monkeypatch.setattr(Plan, "indices", lambda self, *place: honest(self, *place) + 1)
    result = run("plan", "--num-samples", 100, "--batch-size", 10, exit_code=1)
    assert "1 read of samples that don't exist" in result.stdout


def test_a_plan_with_a_short_batch_is_found_out(monkeypatch):
    indices, valid = Plan.indices, Plan.valid

    def short(rows):
        return lambda self, *place: rows(self, *place)[: -1 if place[1] == 3 else None]

    monkeypatch.setattr(Plan, "indices", short(indices))
    monkeypatch.setattr(Plan, "valid", short(valid))
    result = run(
        "plan", "--num-samples", 100, "--batch-size", 10, "--remainder", "drop", exit_code=1
    )
    assert "99 reads, not 100" in result.stdout
    assert "1 batch of less than 10 samples" in result.stdout


def test_too_many_samples_are_planned_but_nothing_is_claimed():
    found = document("plan", "--num-samples", 10**9, "--world-size", 64)
    assert found["coverage"] is None
    assert found["ranks"] is None


def test_a_virtual_epoch_is_counted_as_the_part_that_it_is():
    found = document(
        "plan", "--num-samples", 105, "--epoch-size", 40, "--batch-size", 8, "--shuffle", "full"
    )
    assert found["epoch_samples"] == 40
    assert found["coverage"]["proved"]
    assert found["coverage"]["num_distinct"] == 40
    result = run("plan", "--num-samples", 105, "--epoch-size", 40, "--batch-size", 8)
    assert "40 of 105 samples exactly once, 65 left for other virtual epochs" in result.stdout


def test_a_virtual_epoch_over_the_border_of_two_permutations_says_so():
    result = run(
        "plan", "--num-samples", 50, "--epoch-size", 40, "--batch-size", 8, "--epoch", 1,
        "--shuffle", "full",
    )  # fmt: skip
    assert "reads of the next permutation" in result.stdout


def test_an_unshuffled_plan_shows_ranks_as_rows_and_shards_as_columns():
    result = run("plan", "--num-samples", 40, "--shards", 4, "--world-size", 2, "--batch-size", 5)
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("   ")]
    assert rows == [["0", "20", "0", "4", "▄▄▄▄"], ["1", "20", "0", "4", "▄▄▄▄"]]


def test_many_shards_and_ranks_fit_a_screen(monkeypatch):
    result = run(
        "plan", "--num-samples", 20_000, "--shards", 1500, "--world-size", 100, "--batch-size", 4,
        "--shuffle", "window",
    )  # fmt: skip
    assert max(map(len, result.stdout.splitlines())) < 120
    assert len(result.stdout.splitlines()) < 50
    assert "68 more ranks" in result.stdout


def test_shards_are_counted_in_groups_where_a_table_of_all_would_be_too_large(monkeypatch):
    monkeypatch.setattr("shardwise.extensions.tools.plan.MAX_CELLS", 100)
    found = document(
        "plan", "--num-samples", 1000, "--shards", 77, "--world-size", 10, "--batch-size", 4
    )
    assert found["coverage"]["proved"]
    assert found["ranks"][3]["shards"] is None
    assert found["ranks"][3]["num_samples"] == 100


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give either URLS or --num-samples"),
        (["x.tar", "--num-samples", 5], "give either URLS or --num-samples"),
        (["x.tar", "--shards", 5], "--shards goes with --num-samples"),
        (["--num-samples", 0], "--num-samples"),
        (["--num-samples", 5, "--batch-size", 0], "--batch-size"),
        (["--num-samples", 5, "--shuffle", "some"], "--shuffle"),
        (["--num-samples", 5, "--remainder", "lose"], "--remainder"),
        (["--num-samples", 5, "--epoch", -1], "--epoch"),
    ],
)
def test_what_cannot_be_planned_is_a_usage_error(arguments, says):
    assert says in run("plan", *arguments, exit_code=2).stderr


MIXTURE = """
import shardwise as sw

web, code = sw.wrap(range(700)), sw.wrap(range(90))
mixed = sw.mix({"web": (web, 0.7), "code": (code, 0.3)}, until=1024, seed=4)
batches = lambda: sw.mix({"web": (web, 3), "code": (code, 1)}, until=1024, per="batch")
wrong = 3
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "mixed_data.py").write_text(MIXTURE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mixture_of_a_program_shows_each_dataset_in_the_epoch(program):
    shown = run("plan", "mixed_data.py:mixed", "--world-size", 2, "--batch-size", 32).stdout
    assert "epochs of 1,024 samples" in shown
    assert "shuffle its own, seed 4" in shown
    rows = {
        row.split()[0]: row.split() for row in shown.splitlines() if row.startswith(("web", "c"))
    }
    assert rows["web"][1:3] == ["717", "70.02%"]
    assert rows["code"][1:] == ["307", "29.98%", "0.000", "to", "3.411"]
    assert "proved, 790 of 790 samples, and 234 repeats" in shown
    later = document("plan", "mixed_data:mixed", "--batch-size", 64, "--epoch", 1)
    assert later["sources"]["code"]["epochs_before"] == 307 / 90
    assert sum(facts["samples"] for facts in later["sources"].values()) == 1024
    of_batches = document("plan", "mixed_data:batches", "--batch-size", 64)
    assert of_batches["sources"]["code"]["samples"] == 256


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mixed_data:nothing", "mixed_data has no 'nothing'"),
        ("mixed_data:wrong", "is 3: name a shardwise.Dataset"),
        ("no_such_module:x", "there is no module 'no_such_module'"),
        ("no_such.py:x", "there is no file 'no_such.py'"),
    ],
)
def test_a_name_that_is_no_dataset_is_a_usage_error(program, name, told):
    assert told in run("plan", name, exit_code=2).stderr


def test_a_mixture_has_no_index(program):
    told = run("index", "mixed_data:mixed", exit_code=2).stderr
    assert "looks like a dataset in Python" in told
