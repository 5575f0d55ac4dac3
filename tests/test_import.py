"""The package's public names: all there, imported when they are used."""

import ast
import importlib.metadata
import types
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from tests.support.python_code import printed_by


def test_importing_the_package_imports_nothing_else():
    heavy = (
        "numpy", "torch", "cv2", "PIL", "simplejpeg", "pyarrow", "click", "rich",
        "shardwise.base.errors", "shardwise.dataset",
    )  # fmt: skip
    code = f"import sys, shardwise; print([m for m in {heavy} if m in sys.modules])"
    assert printed_by(code) == "[]"


def test_datasets_plans_ranks_and_codecs_are_had_without_torch_and_cv2():
    heavy = ("torch", "cv2", "PIL", "simplejpeg", "msgpack", "click")
    code = (
        "import sys, shardwise as sw; ds = sw.wrap([(1, 2)]).map(dict); ds[0]; sw.Plan(10);"
        "import shardwise.codecs; from shardwise.base.ranks import discover;"
        "assert discover().rank == 0;"
        f"sw.tar, sw.image(size=8); print([m for m in {heavy} if m in sys.modules])"
    )
    assert printed_by(code) == "[]"


def test_subpackages_are_attributes():
    code = "import shardwise as sw; print(sw.torch.__name__, sw.testing.__name__)"
    assert printed_by(code) == "shardwise.torch shardwise.testing"


@pytest.mark.parametrize("name", sw.__all__)
def test_every_public_name_is_there(name):
    value = getattr(sw, name)
    if name in ("compat", "torch", "testing"):
        assert isinstance(value, types.ModuleType)
    elif name == "Batch":
        assert value == dict[Any, Any]
    elif name != "__version__":
        # A module of the same name must not take a function's place.
        assert callable(value)
        assert value.__module__.startswith("shardwise.")
    assert getattr(sw, name) is value


def test_the_version_is_the_distributions():
    assert sw.__version__ == importlib.metadata.version("shardwise")


def test_everything_opens_without_the_metadata_of_a_package(tmp_path):
    """As on PYTHONPATH, and in bundles of PyInstaller and Bazel."""
    code = f"""
import importlib.metadata as metadata
def missing(name, *_):
    if name == "shardwise":
        raise metadata.PackageNotFoundError(name)
    return real(name)
real, metadata.Distribution.from_name = metadata.Distribution.from_name, missing
import shardwise as sw
from shardwise.cli import cli
from shardwise.extensions.service.version import VersionWord
with sw.TarWriter({str(tmp_path / "0.tar")!r}, manifest=True) as writer:
    writer.write({{"__key__": "0", "txt": "a"}})
data = sw.tar({str(tmp_path / "0.tar")!r})
cli(["--version"], standalone_mode=False)
print(sw.__version__, len(data), VersionWord.of(data).release)
"""
    assert printed_by(code).splitlines()[-1] == f"{sw.__version__} 1 {sw.__version__}"


def test_names_are_listed_before_they_are_imported():
    code = "import shardwise as sw; print(sorted(set(sw.__all__) - set(dir(sw))))"
    assert printed_by(code) == "[]"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'shardwise' has no attribute 'tarr'; .* sw.tar?"):
        sw.tarr
    with pytest.raises(AttributeError, match=r"did you mean sw.DataLoader"):
        sw.dataloader
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing_alike'$"):
        sw.nothing_alike
    with pytest.raises(ImportError):
        from shardwise import tarr  # noqa: F401


def test_type_checkers_see_the_names_that_are_there():
    tree = ast.parse(Path(sw.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {"__version__"}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            seen.update(alias.name for alias in node.names)
    assert seen == set(sw.__all__)


@pytest.mark.parametrize(
    "code",
    [
        "next(iter(sw.DataLoader([1, 2], 2)))",
        "sw.DataLoader([1, 2], 2, device='cpu')",
        "sw.torch",
        "sw.compat.install()",
        "sw.torch_tensor()(b'')",
        "sw.wrap([b'1']).decode(value=sw.torch_tensor())[0]",
        "import shardwise.integrations.accelerate",
    ],
)
def test_a_missing_torch_is_told_in_one_sentence(code):
    program = f"""
import sys
sys.modules["torch"] = None
import shardwise as sw
try:
    {code}
except ImportError as error:
    print(type(error).__name__, error, error.__cause__)
"""
    told = printed_by(program)
    assert told.startswith("MissingTorchError tensors need torch, which is not installed: pip")
    assert "output='numpy'" in told
    assert told.endswith("None")


def test_arrays_are_had_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import shardwise as sw; "
        "print(next(iter(sw.DataLoader([1, 2], 2, output='numpy')))['value'])"
    )
    assert printed_by(code) == "[1 2]"
