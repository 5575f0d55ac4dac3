"""The notebooks of examples/notebooks are run, each by a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear its outputs"
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    assert any("data:image/png" in each.get("data", {}).get("text/html", "") for each in outputs)
    printed = "".join(each.get("text", "") for each in outputs)
    if path.stem == "first_steps":
        assert "1797 samples, 1797 different ones, of 1797" in printed
