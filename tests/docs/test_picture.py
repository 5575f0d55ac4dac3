"""Pictures agree with the plan, and with the figures of the benchmarks."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@pytest.mark.parametrize("name", ["plan", "throughput"])
def test_the_picture_is_drawn_from_what_it_shows(name: str) -> None:
    draw = runpy.run_path(str(IMAGES / f"{name}.py"))["draw"]
    assert draw() == (IMAGES / f"{name}.svg").read_text(), f"run python docs/images/{name}.py"
