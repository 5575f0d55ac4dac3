"""The notebooks of examples/notebooks are run, cell by cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_forked

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples/notebooks").glob("*.ipynb"))
RUNNER = """
import json
import sys

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell, shown = InteractiveShell.instance(), ""
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        with capture_output() as said:
            done = shell.run_cell("".join(cell["source"]))
        done.raise_error()
        print(said.stdout)
        shown += shell.display_formatter.format(done.result)[0].get("text/html", "")
assert "data:image/png" in shown
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_the_notebook_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "clear its outputs"
    monkeypatch.chdir(tmp_path)
    _check(path, run_forked(tmp_path, RUNNER, path))


@pytest.mark.long  # a kernel imports torch anew
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_in_a_kernel(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    assert any("data:image/png" in each.get("data", {}).get("text/html", "") for each in outputs)
    _check(path, "".join(each.get("text", "") for each in outputs))


def _check(path: Path, printed: str) -> None:
    if path.stem == "first_steps":
        assert "1797 samples, 1797 different ones, of 1797" in printed
