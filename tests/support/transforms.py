"""Transforms for worker processes, in a module that they import in little time."""

from __future__ import annotations

from typing import Any

import numpy as np


def augmented(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """With a random `crop`."""
    return {**sample, "crop": rng.integers(0, 100, 4)}
