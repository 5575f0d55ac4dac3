"""A user's program under type checkers: they know what is returned, and find mistakes.

And the types name what there is: a `TypedDict` has the keys of the dict that is returned.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import shardwise as sw
from tests.support.server_process import require_binary, skip_or_fail
from tests.support.tars import make_shards

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "typed" / "program.py"


@pytest.mark.long  # the types that ./test checks before the tests are the program's, too
def test_a_users_program_passes_mypy_in_strict_mode(tmp_path: Path) -> None:
    if not _is_there("mypy"):
        skip_or_fail("mypy is not installed")
    cache = ROOT / ".mypy_cache"
    # Without the cache of `./test`, mypy reads the whole package and numpy: a minute.
    options = ["--cache-dir", cache if cache.is_dir() else tmp_path]
    options += ["--config-file", ROOT / "pyproject.toml"]  # strict
    command = [sys.executable, "-m", "mypy", *options, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


def test_a_users_program_passes_pyright(tmp_path: Path) -> None:
    pyright = require_binary("pyright", package="npm install pyright")
    settings = {"include": [str(PROGRAM)], "reportUnnecessaryTypeIgnoreComment": "error"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [pyright, "--project", tmp_path, "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stdout


def _is_there(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def keys(typed: Any) -> set[str]:
    return {name for name in get_type_hints(typed) if name in typed.__required_keys__}


@pytest.mark.extension
def test_the_types_name_the_keys_that_are_returned(tmp_path: Path) -> None:
    data = sw.tar(make_shards(tmp_path, [3, 2]))
    with sw.DataLoader(data, 2, num_workers=0, rank=0, world_size=1, output="numpy") as loader:
        assert loader.certificate().keys() == keys(sw.Certificate)
        list(loader)
        assert loader.certificate().keys() == keys(sw.Certificate)
        stats = loader.stats()
    assert stats.keys() == keys(sw.Stats)
    report = sw.build(data, tmp_path / "out" / "{shard}.tar", num_workers=0)
    assert report.keys() == keys(sw.BuildReport)
    again = sw.build(data, tmp_path / "out" / "{shard}.tar", num_workers=0)
    assert again.keys() == keys(sw.BuildReport)
    mixed = sw.mix({"a": (data, 1), "b": (data, 1)})
    with sw.DataLoader(mixed, 2, num_workers=0, rank=0, world_size=1) as loader:
        next(iter(loader))
        assert loader.stats().keys() - keys(sw.Stats) == {"sources"}
    assert sw.Stats.__optional_keys__ == {"sources", "service"}
