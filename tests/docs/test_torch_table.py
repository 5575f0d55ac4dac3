"""The page for those who come from torch says what the loader does with torch's arguments."""

from __future__ import annotations

from pathlib import Path

from shardwise.loader.arguments import TORCH_ARGUMENTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-torch.md"


def test_the_table_of_arguments_is_the_one_that_the_loader_goes_by() -> None:
    section = PAGE.read_text().partition("## Arguments\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    for name, argument in TORCH_ARGUMENTS.items():
        ours = "nothing" if argument.ours == "nothing" else f"`{argument.ours}`"
        assert f"| `{name}=` | {ours} | {argument.why} |" in rows
    assert len(rows) == len(TORCH_ARGUMENTS) + 1, "and sampler="
