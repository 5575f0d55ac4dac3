"""Stages with their arguments: `pipelinefilter(f)(*args)` is a stage that calls `f(source, *args)`.

They pickle, also where the function is decorated and so no longer found under its own name.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


class FilterFunction:
    """A stage: a function of a source, and its other arguments."""

    def __init__(self, f: Callable[..., Any], *args: Any, **kw: Any) -> None:
        self.f = f
        self.args = args
        self.kw = kw

    def __call__(self, data: Any) -> Any:
        """Run the stage on a source."""
        return self.f(data, *self.args, **self.kw)

    def __repr__(self) -> str:
        return f"<{getattr(self.f, '__name__', self.f)} {self.args} {self.kw}>"

    def __reduce__(self) -> tuple[Any, ...]:
        decorated = _decorated(self.f)
        if decorated is None:
            return _with_function, (self.f, self.args, self.kw)
        module, name = decorated
        return _rebuild, (module, name, self.args, self.kw)


class RestCurried:
    """What `pipelinefilter` makes of a function: called with arguments, it gives a stage."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f

    def __call__(self, *args: Any, **kw: Any) -> FilterFunction:
        """The stage with these arguments."""
        return FilterFunction(self.f, *args, **kw)


def pipelinefilter(f: Callable[..., Any]) -> RestCurried:
    """Make stages of a function whose first argument is the source; also as a decorator."""
    result = RestCurried(f)
    functools.update_wrapper(result, f)
    return result


def _decorated(f: Callable[..., Any]) -> tuple[str, str] | None:
    """Where the decorated form of a function is found, if only that one has its name."""
    module, name = getattr(f, "__module__", None), getattr(f, "__qualname__", "")
    if module is None or "." in name or "<" in name:
        return None
    found = getattr(importlib.import_module(module), name, None)
    return (module, name) if isinstance(found, RestCurried) and found.f is f else None


def _with_function(
    f: Callable[..., Any], args: tuple[Any, ...], kw: dict[str, Any]
) -> FilterFunction:
    return FilterFunction(f, *args, **kw)


def _rebuild(module: str, name: str, args: tuple[Any, ...], kw: dict[str, Any]) -> FilterFunction:
    curried = getattr(importlib.import_module(module), name)
    return FilterFunction(curried.f, *args, **kw)
