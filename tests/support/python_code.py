"""Python code in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

# A loaded machine is slow, not wrong.
_PATIENCE_S = 240


def run_code(
    code: str, *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code, which may be indented, with arguments; its output is text."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )


def printed_by(code: str, *arguments: object, env: Mapping[str, str] | None = None) -> str:
    """Run code that must end well; what it printed."""
    done = run_code(code, *arguments, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
