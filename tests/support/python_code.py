"""Python code in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

# A loaded machine is slow, not wrong.
_PATIENCE_S = 240


def run_code(
    code: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout_s: float = _PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Run code, which may be indented, with arguments; its output is text."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def printed_by(code: str, *arguments: object, **options: Any) -> str:
    """Run code that must end well, with the options of `run_code`; what it printed."""
    done = run_code(code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
