"""Stages with their arguments: `pipelinefilter(f)(*args)` is a stage that calls `f(source, *args)`.

They pickle, also where the function is decorated and so not found under its own name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


class FilterFunction:
    """A stage: a function `f` of a source, and its other arguments `args` and `kw`."""

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
        module = sys.modules.get(getattr(self.f, "__module__", ""))
        named = getattr(module, getattr(self.f, "__name__", ""), None)
        is_decorated = isinstance(named, RestCurried) and named.f is self.f
        return _make_stage, (named if is_decorated else self.f, self.args, self.kw)


class RestCurried:
    """What `pipelinefilter` makes of a function: called with arguments, it gives a stage."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        functools.update_wrapper(self, f)

    def __call__(self, *args: Any, **kw: Any) -> FilterFunction:
        """The stage with these arguments."""
        return FilterFunction(self.f, *args, **kw)

    def __reduce__(self) -> str:
        # Pickled by name, as a function is.
        return str(self.f.__name__)


def pipelinefilter(f: Callable[..., Any]) -> RestCurried:
    """Make stages of a function whose first argument is the source; also as a decorator."""
    return RestCurried(f)


def _make_stage(f: Any, args: tuple[Any, ...], kw: dict[str, Any]) -> FilterFunction:
    return FilterFunction(f.f if isinstance(f, RestCurried) else f, *args, **kw)
