"""The picture of the plan is the plan's."""

from __future__ import annotations

import runpy
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


def test_the_picture_is_drawn_from_the_plan_as_it_is() -> None:
    draw = runpy.run_path(str(IMAGES / "plan.py"))["draw"]
    assert draw() == (IMAGES / "plan.svg").read_text(), "run python docs/images/plan.py"
