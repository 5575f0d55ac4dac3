"""Ranks of a model-parallel group: each batch is made once on a machine, and all get it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.support.ranks import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "shared_batches.py"
NUM_SAMPLES, LENGTH = 26, 4096
MAKERS, TAKERS = (0, 2), (1, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    run_ranks(PROGRAM, folder, nproc=4)
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(4)]


def test_ranks_that_share_get_the_batches_that_each_would_have_made(ranks):
    assert all(rank["same"] for rank in ranks)
    assert ranks[0]["ids"] == ranks[1]["ids"] != ranks[2]["ids"] == ranks[3]["ids"]
    once = sorted(sum(ranks[0]["ids"] + ranks[2]["ids"], []))
    assert len(once) == len(set(once)) == NUM_SAMPLES // 6 * 6
