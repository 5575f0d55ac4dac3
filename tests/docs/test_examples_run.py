"""The README's, the pages' and the docstrings' examples, and examples/*.py, are run."""

from __future__ import annotations

import doctest
import functools
import importlib.util
import re
import signal
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import shardwise as sw
from examples import service, video_classifier
from shardwise import plan
from tests.support.commands import document
from tests.support.pages import Block, blocks, write_shards
from tests.support.ranks import Run, run_ranks, run_several
from tests.support.torchrun import run_program, torchrun

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
if importlib.util.find_spec("torchft") is None:  # there are wheels for Linux on x86-64 alone
    EXAMPLES.remove(ROOT / "examples" / "torchft_replicas.py")
# They start torchrun several times.
VIDEO, SERVICE, LANGUAGE_MODEL = TRAININGS = [
    ROOT / "examples" / f"{name}.py" for name in ("video_classifier", "service", "language_model")
]
FSDP = ("torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict")
IN_OWN_INTERPRETER = [*TRAININGS, ROOT / "examples" / "torchft_replicas.py"]


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
    # A store that a page registers is the page's own.
    monkeypatch.setattr("shardwise.storage.client._FACTORIES", {})
    for block in blocks(page):
        if block.runs and block.title is None:
            code = "\n" * (block.line - 1) + block.code  # tracebacks name the page's line
            exec(compile(code, str(page), "exec"), module.__dict__)


PROGRAMS = [(page, b) for page in PAGES for b in blocks(page) if b.title and b.runs]


def _write(block: Block, folder: Path) -> Path:
    assert block.title is not None
    program = folder / block.title
    program.write_text(block.code)
    return program


TITLED = pytest.mark.parametrize(
    ("page", "block"), PROGRAMS, ids=[f"{p.stem}-{b.title}" for p, b in PROGRAMS]
)


@TITLED
def test_the_titled_program_runs_on_two_ranks(page: Path, block: Block, here: Path) -> None:
    run_ranks(_write(block, here), nproc=2, timeout=280)


@pytest.mark.long
@TITLED
def test_the_titled_program_runs_under_torchrun(page: Path, block: Block, here: Path) -> None:
    torchrun(_write(block, here), nproc=2, timeout=280)


@pytest.mark.parametrize("example", [p for p in EXAMPLES if p not in IN_OWN_INTERPRETER], ids=_name)
def test_the_example_runs(example: Path, here: Path) -> None:
    run_several(Run((example,), None), timeout=280)


@pytest.mark.long  # each imports torch anew, and the trainings do so up to eight times
@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_the_example_runs_in_an_interpreter_of_its_own(example: Path, here: Path) -> None:
    run_program(example, timeout=280, env={"GLOO_SOCKET_IFNAME": "lo"})


def test_the_example_of_servers_goes_on_when_servers_and_a_rank_are_killed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_ranks(leg: int, addresses: str) -> int:
        ranks = Run((SERVICE, addresses, str(leg)), service.NUM_RANKS, check=False)
        return run_several(ranks, timeout=280)[0].returncode

    monkeypatch.setattr(service, "run_ranks", run_ranks)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    service.main()


FEW_STEPS = f"""
import sys
sys.path.insert(0, {str(LANGUAGE_MODEL.parent)!r})
from pathlib import Path
import language_model
vars(language_model).update(STEPS=6, CHANGED_AT=4, CHECKPOINT_EVERY=2, KILLED_AT=3)
language_model.show = print  # so few steps teach it nothing
if len(sys.argv) > 1:
    language_model.train(Path(sys.argv[1]), is_killed="--kill" in sys.argv)
"""


def test_the_example_of_a_language_model_goes_on_when_a_rank_is_killed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its neighbour is beside it, as in a program.
    monkeypatch.syspath_prepend(LANGUAGE_MODEL.parent)
    monkeypatch.setattr(sys, "argv", sys.argv[:1])
    exec(FEW_STEPS, code := {})
    language_model = code["language_model"]
    program = here / "few_steps.py"
    program.write_text(FEW_STEPS)

    def run(ranks: int, folder: Path, *options: str) -> int:
        each = Run((program, folder, *options), ranks, check=False)
        return run_several(each, preload=FSDP, timeout=280)[0].returncode

    monkeypatch.setattr(language_model, "run", run)
    monkeypatch.setattr(sw, "build", functools.partial(sw.build, num_workers=0))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    language_model.main()


def test_the_ranks_of_the_example_of_videos_are_killed_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All but the large one.
    monkeypatch.setattr(video_classifier, "FILMS", video_classifier.FILMS[1:])
    video_classifier.write_films(tmp_path / "films.tar")
    rank = (VIDEO, tmp_path)
    killed, done = run_several(Run(rank, 2, check=False), Run(rank, 3), timeout=280)
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    said = re.findall(r"epoch (\d): \d+% of the clips right", done.stdout)
    assert said == [str(epoch) for epoch in range(video_classifier.NUM_EPOCHS)]
    [order] = document("certify", tmp_path / "coverage")["orders"]
    assert len(order["epochs"]) == video_classifier.NUM_EPOCHS
    for epoch in order["epochs"]:
        assert re.match(r"epoch \d: every one of \d+ samples exactly once", epoch["verdict"])


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
