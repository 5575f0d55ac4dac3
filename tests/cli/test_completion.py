"""Completion in shells: the scripts, and what they ask the command for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from shardwise.cli import COMMANDS, cli
from tests.support.commands import document, run
from tests.support.python_code import printed_by


def completions(*words: str) -> list[tuple[str, str]]:
    *before, last = words
    found = ShellComplete(cli, {}, "shardwise", "_SHARDWISE_COMPLETE").get_completions(before, last)
    return [(each.type, each.value) for each in found]


def test_commands_and_options_are_completed() -> None:
    assert completions("in") == [("plain", "index"), ("plain", "info")]
    assert [value for _, value in completions("")] == list(COMMANDS)
    assert ("plain", "--num-samples") in completions("plan", "--num")
    assert ("plain", "window") in completions("plan", "--shuffle", "")


def test_the_names_of_commands_are_completed_without_importing_them() -> None:
    heavy = ("numpy", "rich", "shardwise.dataset", "shardwise.extensions.tools.info")
    code = (
        "import sys; from shardwise.cli import cli; "
        "cli.shell_complete(cli.make_context('shardwise', ['x']), 'in'); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert printed_by(code) == "[]"


@pytest.mark.parametrize(
    "words",
    [
        "info", "index", "verify", "bench", "doctor", "plan", "show", "explain", "certify", "watch",
        "report", "convert", "convert a", "reshard", "build", "serve", "cache",
    ],
)  # fmt: skip
def test_names_of_files_are_left_to_the_shell(words: str) -> None:
    ((kind, value),) = completions(*words.split(), "da")
    assert kind in ("file", "dir")
    assert value == "da"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_runs(shell: str, tmp_path: Path) -> None:
    script = run("completion", shell).stdout
    assert document("completion", shell) == {"shell": shell, "script": script.rstrip("\n") + "\n"}
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script)
    subprocess.run([shell, "-n", path], check=True)


def test_bash_completes_a_command(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    program = tmp_path / "shardwise"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m shardwise "$@"\n')
    program.chmod(0o755)
    asked = (
        f'PATH="{tmp_path}:$PATH"; eval "$(shardwise completion bash)"; '
        "COMP_WORDS=(shardwise veri); COMP_CWORD=1; _shardwise_completion shardwise; "
        'echo "${COMPREPLY[@]}"; complete -p shardwise'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == "verify"
    assert "_shardwise_completion" in done.stdout


def test_another_shell_is_a_usage_error() -> None:
    assert "'bash', 'zsh', 'fish'" in run("completion", "tcsh", exit_code=2).stderr
