"""The README's, the pages' and the docstrings' examples, and examples/*.py, are run."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from examples import video_classifier
from shardwise import plan
from tests.support.commands import document
from tests.support.pages import Block, blocks, write_shards
from tests.support.ranks import Run, run_several
from tests.support.trainers import DDP

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
VIDEO = ROOT / "examples" / "video_classifier.py"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory with `shards/`, and in it."""
    write_shards(tmp_path / "shards")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=_name)
def test_the_page_runs(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"page_{page.stem}")
    # What a page defines can be pickled, as in a program.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page):
        if block.runs and block.title is None:
            code = "\n" * (block.line - 1) + block.code  # tracebacks name the page's line
            exec(compile(code, str(page), "exec"), module.__dict__)


PROGRAMS = [(page, b) for page in PAGES for b in blocks(page) if b.title and b.runs]


@pytest.mark.parametrize(
    ("page", "block"), PROGRAMS, ids=[f"{p.stem}-{b.title}" for p, b in PROGRAMS]
)
def test_the_titled_program_runs_on_two_ranks(page: Path, block: Block, here: Path) -> None:
    assert block.title is not None
    program = here / block.title
    program.write_text(block.code)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    _run([sys.executable, *launcher, "--nproc-per-node=2", str(program)], here)


@pytest.mark.parametrize("example", [p for p in EXAMPLES if p != VIDEO], ids=_name)
def test_the_example_runs(example: Path, here: Path) -> None:
    _run([sys.executable, str(example)], here)


@pytest.mark.long  # seven imports of torch
def test_the_example_of_videos_runs_under_torchrun(here: Path) -> None:
    _run([sys.executable, str(VIDEO)], here)


def test_the_ranks_of_the_example_of_videos_are_killed_and_go_on(tmp_path: Path) -> None:
    video_classifier.write_films(tmp_path / "films.tar")
    rank = (VIDEO, tmp_path)
    killed, done = run_several(Run(rank, 2, check=False), Run(rank, 3), preload=DDP, timeout=280)
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    said = re.findall(r"epoch (\d): \d+% of the clips right", done.stdout)
    assert said == [str(epoch) for epoch in range(video_classifier.NUM_EPOCHS)]
    [order] = document("certify", tmp_path / "coverage")["orders"]
    assert len(order["epochs"]) == video_classifier.NUM_EPOCHS
    for epoch in order["epochs"]:
        assert re.match(r"epoch \d: every one of \d+ samples exactly once", epoch["verdict"])


def _run(command: list[str], here: Path) -> None:
    done = subprocess.run(
        command,
        cwd=here,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


PACKAGE = ROOT / "src" / "shardwise"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text()]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_docstrings_run(path: Path, here: Path) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    tests = [t for t in doctest.DocTestFinder().find(module) if t.examples]
    for test in tests:
        out: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        test.globs |= {"np": np, **{name: getattr(plan, name) for name in plan.__all__}}
        runner.run(test, out=out.append)
        assert runner.failures == 0, "".join(out)
