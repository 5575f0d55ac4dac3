"""Loaders and samplers that were made before there were ranks, and are used where there are."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import Run, run_several

PROGRAM = Path(__file__).parent / "programs" / "travelled.py"
FOUND = ("loader", "iterable", "iterable in workers", "batch sampler", "sampler")


@pytest.fixture(scope="module", params=["fork", pytest.param("spawn", marks=pytest.mark.long)])
def ranks(request, tmp_path_factory):
    """What both ranks read, by name: `(length, batches)`, or an error's name and message."""
    out = tmp_path_factory.mktemp(request.param)
    run_several(Run((PROGRAM, request.param, out), None))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", FOUND)
def test_what_found_its_ranks_takes_over_those_of_the_process_group(ranks, name):
    lengths, batches = zip(*(rank[name] for rank in ranks), strict=True)
    assert lengths == (6, 6)
    assert [len(b) for b in batches] == [6, 6]
    ids = sorted(i for rank in batches for batch in rank for i in batch)
    # torch's sampler gives all ranks as many, here by one repeat.
    assert ids == sorted([*range(53), 0] if name == "sampler" else range(53))


@pytest.mark.parametrize(("name", "position"), [("resumed", 13), ("begun", 5)])
def test_the_position_it_had_travels_with_it(ranks, name, position):
    (length, first), (_, second) = (rank[name] for rank in ranks)
    assert (length, len(first)) == (6, len(second))
    assert sorted(i for batch in first + second for i in batch) == list(range(position, 53))


def test_ranks_that_were_given_and_are_another_processs_are_refused_with_both_values(ranks):
    error, message = ranks[0]["given"]
    assert error == "RankError"
    assert "rank=1 and world_size=2" in message
    assert "rank 0 of 2" in message
    assert "make it in the process that uses it" in message
    length, batches = ranks[1]["given"]  # where they are right
    assert length == len(batches) == 6
    assert batches[0] == [5, 6, 7, 8, 9]
    assert [rank["given for a part"][0] for rank in ranks] == ["RankError"] * 2


def test_ranks_that_were_given_here_or_are_one_of_one_stay(ranks):
    for rank in ranks:
        assert [i for batch in rank["given all"][1] for i in batch] == list(range(53))
        assert rank["a part, made here"] == [4, [[0, 1, 2, 3, 4]]]
