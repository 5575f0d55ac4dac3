"""Shards for all examples of trainers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwise as sw
from examples.digits.data import write_shards


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in `train` and `test`, with their indexes."""
    directory = tmp_path_factory.mktemp("digits")
    write_shards(directory)
    for split in ("train", "test"):
        len(sw.tar(directory / split))
    return directory


@pytest.fixture(autouse=True)
def no_accelerator_is_left() -> Iterator[None]:
    """Accelerators outlive the programs that made them, as state that the process shares."""
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
