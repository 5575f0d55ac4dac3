"""The command as a whole: start-up, exit codes, errors in one line, Ctrl-C, closed pipes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import pytest

from shardwise import cli as cli_module
from shardwise.base.errors import DataError
from tests.support.commands import run, spawn
from tests.support.python_code import printed_by
from tests.support.tars import make_shards
from tests.support.waiting import wait_for

GUARD_S = 120


def test_help_lists_every_command_with_its_purpose():
    written = run("--help").stdout
    for name, purpose in cli_module.COMMANDS.items():
        assert name in written
        assert purpose.split()[0] in written
    assert "tar shards in the WebDataset format" in written
    assert "Parquet" in written


@pytest.mark.parametrize("name", list(cli_module.COMMANDS))
def test_every_command_explains_itself_and_takes_json(name):
    written = run(name, "--help").stdout
    assert "--json" in written
    assert "--traceback" in written
    assert "Exit code" in written


def test_help_is_shown_without_importing_torch_cv2_or_numpy():
    script = (
        "import sys\n"
        "from shardwise.cli import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'cv2', 'numpy', 'rich'} & set(sys.modules)))\n"
    )
    assert printed_by(script).splitlines()[-1] == "[]"


def test_no_command_imports_torch_or_cv2(tmp_path):
    make_shards(tmp_path, [3, 2])
    script = (
        "import sys\n"
        "from shardwise.cli import cli\n"
        "for name in ('index', 'info', 'plan', 'verify', 'doctor', 'bench --batches 2'):\n"
        "    cli([*name.split(), sys.argv[1]], standalone_mode=False)\n"
        "print(sorted({'torch', 'cv2', 'PIL', 'matplotlib'} & set(sys.modules)))\n"
    )
    path = tmp_path / "script.py"
    # Spawned builders import the script again: it must not run twice.
    path.write_text(f"if __name__ == '__main__':\n    exec({script!r})\n")
    done = subprocess.run(
        [sys.executable, path, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert run("--version").stdout == f"shardwise {version('shardwise')}\n"


def test_an_unknown_command_or_option_is_a_usage_error():
    assert "No such command 'indx'. Did you mean 'index'?" in run("indx", exit_code=2).stderr
    assert "Did you mean" not in run("zzzz", exit_code=2).stderr
    assert "No such option" in run("plan", "--num-sample", 3, exit_code=2).stderr
    assert "Missing argument" in run("verify", exit_code=2).stderr


@pytest.mark.parametrize("name", ["index", "info", "plan", "verify", "doctor"])
def test_a_pattern_that_finds_nothing_is_one_line_and_exit_code_1(name, tmp_path):
    result = run(name, tmp_path / "*.tar", exit_code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("shardwise: no file matches the pattern")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["index", "info", "plan", "verify", "doctor"])
def test_a_shard_named_twice_is_a_usage_error(name, tmp_path):
    (path,) = make_shards(tmp_path, [2])
    result = run(name, path, path, exit_code=2)
    assert "named twice" in result.stderr


def test_an_error_with_json_is_a_document_too(tmp_path):
    result = run("info", tmp_path / "*.tar", "--json", exit_code=1)
    found = json.loads(result.stdout)
    assert found["error"]["kind"] == "MissingShardError"
    assert found["error"]["url"] == str(tmp_path / "*.tar")
    assert "no file matches" in found["error"]["message"]


def test_the_traceback_is_shown_when_asked_for(tmp_path):
    from click.testing import CliRunner

    result = CliRunner().invoke(cli_module.cli, ["info", str(tmp_path / "*.tar"), "--traceback"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "MissingShardError" in result.stderr
    result = CliRunner().invoke(cli_module.cli, ["info", "a.tar", "a.tar", "--traceback"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_names_from_the_data_cannot_write_control_codes_in_an_error(monkeypatch):
    def fail(*_arguments, **_options):
        raise DataError("odd\nready: 0\r1", url="a\x1b[2J.tar")

    monkeypatch.setattr("shardwise.extensions.tools.plan.Plan", fail)
    result = run("plan", "--num-samples", 3, exit_code=1)
    first, second = result.stderr.splitlines()
    assert first == "shardwise: odd"
    assert second == r"  ready: 0\r1 (url 'a\x1b[2J.tar')"


def test_the_module_runs_as_a_process_of_its_own(tmp_path):
    make_shards(tmp_path, [3, 2])
    run("index", tmp_path)
    process = spawn("plan", tmp_path, "--batch-size", "1", "--json")
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0
    assert json.loads(out)["coverage"]["proved"]
    assert err == b""


@pytest.mark.parametrize(
    "name",
    [
        "index",
        "info",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("plan", "verify", "doctor")),
    ],
)
def test_output_that_is_no_terminal_has_no_control_codes(tmp_path, name):
    make_shards(tmp_path, [3, 2])
    run("index", tmp_path)
    process = spawn(name, tmp_path)
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, err
    assert b"\x1b" not in out + err
    assert b"\r" not in out + err
    assert err == b""


def test_a_process_that_knows_only_ascii_still_ends_well(tmp_path):
    make_shards(tmp_path / "größe", [3, 2])
    process = spawn(
        "info", tmp_path / "größe", "--shards", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, err
    assert b"gr\\xf6\\xdfe" in out


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_goes_away_ends_the_command_quietly(options):
    # More than a pipe holds, and nobody reads.
    arguments = ("plan", "--num-samples", "300000", "--shards", "3000", "--world-size", "32")
    read, write = os.pipe()
    os.close(read)
    process = spawn(*arguments, *options, stdout=write)
    os.close(write)
    _, err = process.communicate(timeout=GUARD_S)
    assert err == b""
    assert process.returncode == 141


def test_an_interrupt_ends_with_130_and_one_line():
    # A minute's work, if nothing interrupts it.
    process = spawn(
        "plan", "--num-samples", "200000000", "--world-size", "7", "--shuffle", "full",
        "--traceback",
    )  # fmt: skip
    _wait_until_it_computes(process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 130
    assert out == b""
    assert err == b"shardwise: interrupted\n"


def _wait_until_it_computes(process):
    """Wait until the proof's table is there: then start-up and imports are behind it."""
    import psutil

    seen = psutil.Process(process.pid)
    wait_for(lambda: seen.memory_info().rss >= 200_000_000, process=process)


def test_an_interrupt_in_this_process_is_130_and_one_line(monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwise.extensions.tools.plan.Plan", interrupted)
    result = run("plan", "--num-samples", 3, exit_code=130)
    assert result.output == "shardwise: interrupted\n"


def test_a_terminal_gets_progress_and_folded_tables_at_any_width(tmp_path):
    (path,) = make_shards(tmp_path, [3])
    wide = _on_a_terminal("info", tmp_path, "--shards", columns=500)
    assert "looking" in wide
    assert path in wide
    assert re.search(r"\d/1 shards", wide)
    measured = _on_a_terminal("bench", tmp_path, "--seconds", 0.3, columns=200)
    assert re.search(r"\d/0 s ", measured)
    _on_a_terminal("plan", tmp_path, columns=1)
    narrow = _on_a_terminal("info", tmp_path, "--shards", columns=30)
    assert path not in narrow
    assert "…/" not in narrow
    result = narrow.split("\x1b[2K")[-1]
    assert max(len(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", s)) for s in result.splitlines()) <= 30


def _on_a_terminal(*arguments, columns):
    """What a command writes on a terminal of that width; it must end well."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = spawn(
        *arguments, stdout=theirs, stderr=theirs, env={"TERM": "xterm", "COLUMNS": "", "LINES": ""}
    )
    os.close(theirs)
    written = b""
    # Linux ends a terminal's output with an error, not with an end of file.
    with open(ours, "rb", buffering=0) as terminal, suppress(OSError):
        while piece := terminal.read(65536):
            written += piece
    assert process.wait(GUARD_S) == 0, written
    return written.decode()


def test_options_that_a_message_calls_by_their_names_in_python_are_named_as_in_the_shell(tmp_path):
    make_shards(tmp_path, [2])
    done = run("convert", tmp_path, tmp_path / "a-{shard}.parquet", "--media", exit_code=2)
    assert "media=True: only tar shards" in done.output
    assert "(in the shell: --media)" in done.output
