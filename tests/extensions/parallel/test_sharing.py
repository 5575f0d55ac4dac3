"""Ranks of a model-parallel group: each batch is made once on a machine, and all of them get it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import run
from tests.support.ranks import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "shared_batches.py"
NUM_SAMPLES, LENGTH = 26, 4096
MAKERS, RECEIVERS = (0, 2), (1, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What four ranks of a mesh of two by two saw."""
    folder = tmp_path_factory.mktemp("shared")
    run_ranks(PROGRAM, folder, nproc=4)
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(4)]


def test_ranks_that_share_get_the_batches_that_each_would_have_made_alone(ranks):
    assert all(rank["same"] for rank in ranks)
    assert ranks[0]["ids"] == ranks[1]["ids"] != ranks[2]["ids"] == ranks[3]["ids"]
    once = [each for batch in ranks[0]["ids"] + ranks[2]["ids"] for each in batch]
    assert len(once) == len(set(once)) == NUM_SAMPLES // 6 * 6


def test_one_rank_of_a_machine_makes_the_batches(ranks):
    assert [rank["made"] for rank in ranks] == [12, 0, 12, 0]
    assert [rank["executor"] for rank in ranks] == ["inline", "shared", "inline", "shared"]
    assert [rank["samples"] for rank in ranks] == [12] * 4


def test_certify_counts_the_samples_of_shared_batches_once(folder, ranks):
    assert len(ranks) == 2 * len(list((folder / "coverage").iterdir()))
    output = run("certify", folder / "coverage").stdout
    assert "epoch 0: 24 of 26 samples exactly once" in output


def test_a_resume_is_exact_and_its_state_equal_on_all_ranks(ranks):
    assert len({pickle.dumps(rank["state"]) for rank in ranks}) == 1
    for rank in ranks:
        assert rank["parts"] == rank["second"]
        assert rank["first"] == [rank["ids"]] * 3


def test_a_running_pass_continues_after_regroup(ranks):
    assert all(rank["regrouped"] == rank["ids"] for rank in ranks)


def test_writing_into_a_batch_changes_no_other_ranks_batch(ranks):
    assert [rank["values"] for rank in ranks] == [[0], [1], [2], [3]]
    assert {rank["num_kept"] for rank in ranks} == {NUM_SAMPLES // 3}


def test_context_parallel_ranks_get_the_two_chunks_as_far_from_either_end(ranks):
    for number, rank in enumerate(ranks):
        place = number % 2
        chunks = np.arange(LENGTH).reshape(4, LENGTH // 4)[[place, 3 - place]].ravel()
        assert len(rank["halves"]) == 4
        for numbers, tokens in rank["halves"]:
            assert np.array_equal(tokens, np.array(numbers)[:, None] + chunks)
        assert np.array_equal(rank["batch_at"], rank["halves"][0][1])


def test_halves_of_what_is_no_sequence_are_refused(ranks):
    for rank in ranks:
        assert "halves= names 'n', which has shape [3]" in rank["no sequence"]
        assert "sw.pad(multiple=4)" in rank["no sequence"]
        assert rank["halves={'cp': 'tokens'}"].startswith("TypeError")
        assert "'tp' is no dimension beside group=" in rank["halves={'tp': ['tokens']}"]
        assert rank["halves=['tokens']"].startswith("TypeError")


def test_all_ranks_raise_what_making_the_batch_raised(ranks):
    for rank, key in zip(ranks, "8899", strict=True):
        assert rank["damaged"].startswith("DataError: grow raised KeyError: 'odd'")
        assert f"key '{key}'" in rank["damaged"]


def test_ranks_that_ask_for_different_batches_are_refused(ranks):
    for rank in RECEIVERS:
        assert ranks[rank]["differ"].startswith("RankError: pass 1 of rank")
        assert "asks for step 0 of epoch 1" in ranks[rank]["differ"]


@pytest.mark.parametrize("share", ["'tp'", "'dp'", "['cp', 'dp']"])
def test_names_that_are_no_other_dimension_of_the_mesh_are_refused(ranks, share):
    assert all("which has ['cp']" in rank[f"share={share}"] for rank in ranks)


@pytest.mark.parametrize("share", ["()", "7", "mesh"])
def test_what_is_neither_names_nor_a_group_is_refused(ranks, share):
    assert all(rank[f"share={share}"].startswith("TypeError: share=") for rank in ranks)


def test_share_needs_a_group(ranks):
    assert all(rank["no group"].startswith("ValueError: share='cp' goes") for rank in ranks)


def test_a_late_maker_is_a_stall_error_and_a_dead_one_a_worker_error(ranks):
    assert ranks[1]["waits"].startswith("StallError: no batch for 1 s: step 1 of epoch 0")
    assert "waits for rank 0, which makes the batches" in ranks[1]["waits"]
    assert ranks[3]["waits"].startswith("WorkerError: step 1 of epoch 0 can't be had: rank 2")
