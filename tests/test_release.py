"""The wheel and the sdist: built without a network, installed and used on each Python."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.server_process import skip_or_fail

ROOT = Path(__file__).resolve().parents[1]
USE = """
import json, subprocess, sys
import shardwise as sw
assert sw.__file__.startswith(sys.argv[1]), sw.__file__
with sw.TarWriter("a-{shard}.tar", max_samples=3) as writer:
    for n in range(7):
        writer.write({"__key__": str(n), "cls": n, "txt": f"text {n}"})
data = sw.tar("a-{0..2}.tar").decode(cls=int, txt=str)
loader = sw.DataLoader(data, 2, shuffle=True, output="numpy", rank=0, world_size=1, num_workers=0,
                       remainder="uneven")
with loader:
    seen = sorted(int(n) for batch in loader for n in batch["cls"])
    assert seen == [*range(7)] and loader.certificate()["ok"], seen
command = [sys.executable, "-m", "shardwise"]
found = json.loads(subprocess.check_output([*command, "info", ".", "--json"]))
version = subprocess.check_output([*command, "--version"], text=True)
print(found["num_samples"], sw.__version__, version.strip())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist of this checkout."""
    if not (ROOT / "pyproject.toml").is_file() or not _has_hatchling():
        skip_or_fail("hatchling is not installed")
    folder = tmp_path_factory.mktemp("dist")
    return _build(ROOT, folder)


def _has_hatchling() -> bool:
    from importlib.util import find_spec

    return find_spec("hatchling") is not None


def _build(root: Path, folder: Path) -> tuple[Path, Path]:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder],
        cwd=root, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_sdist_has_the_texts_the_tests_and_the_package(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert names >= {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "tests/conftest.py"}
    with zipfile.ZipFile(wheel) as packed:
        code = {f"src/{name}" for name in packed.namelist() if name.startswith("shardwise/")}
    assert names >= code


@pytest.mark.long
def test_the_sdist_makes_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    again, _ = _build(unpacked, tmp_path / "dist")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_wheel_has_the_package_its_types_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel, _ = built
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        metadata = packed.read(f"shardwise-{sw.__version__}.dist-info/METADATA").decode()
        entries = packed.read(f"shardwise-{sw.__version__}.dist-info/entry_points.txt").decode()
    assert {name.split("/")[0] for name in names} == {
        "shardwise", f"shardwise-{sw.__version__}.dist-info",
    }  # fmt: skip
    source = ROOT / "src" / "shardwise"
    ours = {
        f"shardwise/{path.relative_to(source)}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("shardwise/")} == ours
    assert "shardwise/py.typed" in ours
    assert "shardwise = shardwise.cli:main" in entries
    head, _, readme = metadata.partition("\n\n")
    assert f"\nVersion: {sw.__version__}\n" in head
    assert readme.strip() == (ROOT / "README.md").read_text().strip()


def test_the_classifiers_are_the_pythons_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    named = [text.rpartition(" ")[2] for text in project["classifiers"] if ":: 3." in text]
    assert named == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize(
    "version",
    # 2 s each: all other tests run on one of the first two.
    [*(pytest.param(each, marks=pytest.mark.long) for each in ("3.11", "3.12")), "3.13", "3.14"],
)
def test_the_wheel_works_on_the_python(
    version: str, built: tuple[Path, Path], tmp_path: Path
) -> None:
    # With what the package requires, as `./test` installs it where such a Python is.
    home = ROOT / ".venv" / "pythons" / version
    python = home / "bin" / "python"
    if not (home / "ready").is_file():
        pytest.skip(f"Python {version} is not here")
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps"]
    pip += ["--no-compile", "--quiet", "--disable-pip-version-check", "--target", target]
    subprocess.run([*pip, built[0]], check=True)
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [python, "-c", USE, target],
        cwd=work, env={"PYTHONPATH": str(target), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["7", sw.__version__, "shardwise", sw.__version__]
    script = [python, target / "bin" / "shardwise", "--help"]
    said = subprocess.run(
        script, env={"PYTHONPATH": str(target)}, capture_output=True, text=True, check=False
    )
    assert "Commands" in said.stdout, said.stderr
