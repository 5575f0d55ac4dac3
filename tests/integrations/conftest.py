"""Shards for all examples of trainers."""

from __future__ import annotations

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
