"""Pictures agree with the plan, and with the figures of the benchmarks."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@pytest.mark.parametrize(
    ("picture", "script", "function"),
    [
        ("plan", "plan", "draw"),
        ("ranks", "plan", "draw_ranks"),
        ("throughput", "throughput", "draw"),
    ],
)
def test_the_picture_is_drawn_from_what_it_shows(picture: str, script: str, function: str) -> None:
    draw = runpy.run_path(str(IMAGES / f"{script}.py"))[function]
    found = (IMAGES / f"{picture}.svg").read_text()
    assert draw() == found, f"run python docs/images/{script}.py"


@pytest.mark.parametrize("picture", ["plan", "ranks", "throughput"])
def test_the_picture_is_readable_in_dark_mode(picture: str) -> None:
    svg = (IMAGES / f"{picture}.svg").read_text()
    assert "prefers-color-scheme:dark" in svg
    assert 'fill="#fff"' not in svg  # a white ground
