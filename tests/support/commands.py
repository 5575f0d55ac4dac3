"""Run commands of `shardwise`: in this process for speed, or as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from shardwise.cli import cli


def run(*arguments: object, exit_code: int = 0) -> Result:
    """Run a command in this process; fail if it ends with another exit code or a traceback."""
    result = CliRunner().invoke(
        cli, [str(a) for a in arguments], prog_name="shardwise", catch_exceptions=False
    )
    assert result.exit_code == exit_code, f"{result.exit_code}: {result.stdout}{result.stderr}"
    assert "Traceback" not in result.output
    return result


def document(*arguments: object, exit_code: int = 0) -> Any:
    """Run a command with `--json`; its standard output, which must be one JSON document."""
    return json.loads(run(*arguments, "--json", exit_code=exit_code).stdout)


def spawn(
    *arguments: object, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start `python -m shardwise` in a process group of its own that Ctrl-C would end.

    A process that was started in the background may ignore SIGINT, and so would its children.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "shardwise", *(str(a) for a in arguments)],
        stdin=subprocess.DEVNULL,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=options.pop("stderr", subprocess.PIPE),
        env={**os.environ, **(env or {})},
        start_new_session=True,
        preexec_fn=_listen_to_interrupts,  # noqa: PLW1509 - there is no other way before exec
        **options,
    )


def _listen_to_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
