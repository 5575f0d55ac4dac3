"""The core lives without its extensions: a copy without them trains and certifies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "shardwise"
EXTENSIONS = ("extensions", "compat", "integrations")
# Tests of the core; those that need an extension are marked, or lie in the extension's directory.
CORE_TESTS = (
    "plan",
    "storage",
    "codecs",
    "sources",
    "dataset",
    "engine",
    "tensors",
    "loader",
    "torch_layer",
)

_PROGRAM = """
import pkgutil
import sys
from importlib import import_module
from types import ModuleType

import numpy as np
from click.testing import CliRunner

import shardwise
import shardwise as sw
from shardwise.cli import cli

# A framework whose guard is missing, as its program would import it.
sys.modules["keras"] = ModuleType("keras")

for module in pkgutil.walk_packages(shardwise.__path__, "shardwise."):
    if not module.name.endswith("__main__"):
        import_module(module.name)

with sw.TarWriter("s-{shard:03d}.tar", max_samples=40) as writer:
    for i in range(100):
        writer.write({"__key__": f"{i:03d}", "npy": np.full(3, i), "cls": i % 7})

if __name__ == "__main__":
    data = sw.tar(writer.shards).decode(npy=sw.npy(), cls=int)
    for options in ({"num_threads": 0}, {"num_threads": 2}, {"num_workers": 2}):
        with sw.DataLoader(data, batch_size=8, shuffle=True, output="numpy", **options) as loader:
            seen = np.concatenate([batch["__index__"] for batch in loader])
            assert len(set(seen.tolist())) == len(seen) == 96
            assert loader.certificate()["ok"], loader.certificate()
    for command in (["--help"], ["index", *writer.shards]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, (command, done.output)
    print(CliRunner().invoke(cli, ["info", *writer.shards]).output)
    for call in (lambda: sw.parquet("x.parquet"), lambda: sw.mix({"a": data})):
        try:
            call()
        except sw.MissingExtraError as error:
            print(error)
    try:
        len(sw.tar("s3://bucket/x.tar"))
    except sw.MissingExtraError as error:
        print(error)
"""


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A copy of the package without its extensions."""
    ignored = shutil.ignore_patterns("__pycache__")
    target = shutil.copytree(PACKAGE, tmp_path / "src" / "shardwise", ignore=ignored)
    for name in EXTENSIONS:
        shutil.rmtree(target / name)
    return tmp_path


def test_the_core_trains_with_every_extension_deleted(core: Path) -> None:
    program = core / "program.py"
    program.write_text(_PROGRAM)
    done = _run(core, [sys.executable, str(program)])
    assert done.returncode == 0, done.stderr
    assert "'info' is an extension's" in done.stdout
    assert "'parquet' is an extension's" in done.stdout
    assert "'mix' is an extension's" in done.stdout
    assert "'s3://bucket/x.tar' is no file of this machine" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("part", CORE_TESTS)
def test_the_tests_of_the_core_pass_with_every_extension_deleted(core: Path, part: str) -> None:
    ignored = shutil.ignore_patterns("__pycache__", *EXTENSIONS)
    shutil.copytree(ROOT / "tests", core / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", core)
    chosen = ["-m", "not long and not extension", f"tests/{part}"]
    done = _run(core, [sys.executable, "-m", "pytest", "-q", "-n", "2", *chosen])
    assert done.returncode == 0, done.stdout[-4000:]


def _run(core: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(core / "src")}
    return subprocess.run(
        command,
        check=False,
        cwd=core,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
