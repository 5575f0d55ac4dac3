"""Ranks that share an import: torchrun's environment, and an end with the first that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.ranks import Run, run_several

PROGRAM = """
import json, os, signal, sys
import torch.distributed as dist

if sys.argv[1] == "fail":
    if os.environ["RANK"] == "1":
        sys.exit(3)
    signal.pause()
said = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    ranks = [None, None]
    dist.all_gather_object(ranks, dist.get_rank())
    dist.destroy_process_group()
    said |= {"ranks": ranks, "elastic": dist.is_torchelastic_launched()}
os.write(1, (json.dumps(said) + "\\n").encode())
"""


def test_a_rank_that_fails_ends_its_run_and_later_runs_begin(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    failed, two, alone = run_several(
        Run((program, "fail"), 2, check=False),
        Run((program, "say"), 2),
        Run((program, "say"), None),
    )
    assert failed.returncode == 3
    ranks = sorted((json.loads(line) for line in two.stdout.splitlines()), key=lambda r: r["RANK"])
    assert ranks == [
        {"RANK": r, "LOCAL_RANK": r, "WORLD_SIZE": "2", "ranks": [0, 1], "elastic": True}
        for r in "01"
    ]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    assert json.loads(alone.stdout) == dict.fromkeys(names)


def test_each_call_has_the_environment_and_the_folder_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "print([os.environ.get(name) for name in ('CALLER', 'OF_CALL', 'OF_RUN')], os.getcwd())\n"
        "assert sys.stdin.read() == ''\n"
    )
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("CALLER", str(number))
        runs = [Run((program,), None, env={"OF_RUN": "first"}), Run((program,), None)]
        first, second = run_several(*runs, env={"OF_CALL": "c"} if number else None)
        of_call = "c" if number else None
        assert first.stdout == f"{[str(number), of_call, 'first']} {folder}\n"
        assert second.stdout == f"{[str(number), of_call, None]} {folder}\n"
        monkeypatch.delenv("CALLER")


def test_a_module_that_can_not_be_imported_is_told_without_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "of-the-caller")
    with pytest.raises(AssertionError, match=r"exit code 1: .*'tests\.nowhere'") as caught:
        run_several(Run((tmp_path / "program.py",), None), preload=["tests.nowhere"])
    assert "ModuleNotFoundError" in str(caught.value)
    assert "of-the-caller" not in str(caught.value)


@pytest.mark.long  # the next launcher imports torch anew
def test_a_program_that_does_not_end_is_killed_and_later_calls_begin(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    with pytest.raises(AssertionError, match=r"no end after 20 s"):
        run_several(Run((program,), 2), timeout=20)
    program.write_text("print('here')")
    [done] = run_several(Run((program,), None))
    assert done.stdout == "here\n"
