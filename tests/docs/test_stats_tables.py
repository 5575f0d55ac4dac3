"""The pages that say what `loader.stats()` counts name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardwise as sw

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "heading"), [("performance.md", "What `stats()` counts"), ("remote.md", "Counts")]
)
def test_the_table_names_keys_of_stats(page: str, heading: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    named = {
        key
        for row in section.splitlines()
        if row.startswith("| `")
        for key in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    with sw.DataLoader(sw.wrap(range(4)), batch_size=2, rank=0, world_size=1) as loader:
        list(loader)
        stats = loader.stats()
    assert len(named) >= 8
    assert named <= set(stats)
