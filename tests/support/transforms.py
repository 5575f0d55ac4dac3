"""Transforms for worker processes, in a module that they import in little time."""

from __future__ import annotations

from typing import Any

import numpy as np


def augmented(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """With a random `crop`."""
    return {**sample, "crop": rng.integers(0, 100, 4)}


def grown(sample: dict[str, Any]) -> dict[str, Any]:
    """With `big`, arrays of three shapes, large enough to be put into shared memory."""
    return {**sample, "big": np.full((1 + sample["cls"] % 3, 300), sample["cls"], np.float32)}
