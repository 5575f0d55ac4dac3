"""Refuses versions of frameworks that lack the private names which an adapter relies on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.base.errors import FrameworkError


def require(owner: Any, *names: str, version: str, tested: str) -> None:
    """Check that a framework (`version`; `tested` with another) still has private names."""
    for name in names:
        if not hasattr(owner, name):
            _refuse(f"{owner.__name__}.{name}", version, tested)


def require_literal(
    function: Callable[..., Any], literal: str, *, version: str, tested: str
) -> None:
    """Check that a function of a framework still asks for an attribute by this name."""
    code = getattr(function, "__wrapped__", function).__code__
    if literal not in code.co_consts + code.co_names:
        _refuse(f"{literal} in {function.__qualname__}", version, tested)


def _refuse(name: str, version: str, tested: str) -> None:
    raise FrameworkError(
        f"{version} has no {name}, which this adapter relies on; it was tested with {tested}: "
        "install that version, or use the loader without the adapter"
    )
