"""Transforms for worker processes, in a module that they import in little time."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def augmented(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """With a random `crop`."""
    return {**sample, "crop": rng.integers(0, 100, 4)}


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """With random `noise`, and the `pid` of the process that made it."""
    return {**sample, "noise": rng.random(3), "pid": os.getpid()}


def widened(sample: dict[str, Any]) -> dict[str, Any]:
    """With a `wide` array of its class."""
    return sample | {"wide": np.full(300, sample["cls"], dtype=np.int64)}
