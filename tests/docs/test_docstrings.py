"""Each public name, and each public method of a public class, has a docstring."""

from __future__ import annotations

import builtins
import inspect
from importlib import import_module

import pytest

import shardwise as sw

MODULES = (
    "shardwise",
    "shardwise.executors",
    "shardwise.stores",
    "shardwise.testing",
    "shardwise.torch",
)


def missing_docstrings(value: object, name: str) -> list[str]:
    """Names below `value` without a docstring, those of a base class included, but of built-ins."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return []
    built_in = {inspect.getdoc(base) for base in vars(builtins).values() if inspect.isclass(base)}
    missing = [] if inspect.getdoc(value) not in {None, *built_in} else [name]
    if inspect.isclass(value):
        for method, member in vars(value).items():
            documented = isinstance(member, property | classmethod) or inspect.isfunction(member)
            if (
                documented
                and not method.startswith("_")
                and not inspect.getdoc(getattr(value, method))
            ):
                missing.append(f"{name}.{method}")
    return missing


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings(module: str) -> None:
    public = import_module(module)
    names = public.__all__
    assert [m for n in names for m in missing_docstrings(getattr(public, n), n)] == []


def test_a_missing_docstring_is_found() -> None:
    class Bare(sw.Dataset):
        """With a docstring."""

        def new(self) -> None: ...

    assert missing_docstrings(Bare, "Bare") == ["Bare.new"]
