"""What a function does, as text for a fingerprint: a column that it made is not used for another.

Bytecode, constants, names, defaults and the plain values that it holds count. What it reads from
elsewhere does not: globals, files, other modules' functions, attributes of objects. Another version
of Python compiles to other bytecode, so that a column is made once more.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype)
# Functions within functions; deeper ones count by their names.
_MAX_DEPTH = 8


def described_function(fn: Any) -> str:
    """A text that is the same for the same function in every process, see above.

    Functions of this library and objects of dataclasses are described by their repr, which has all
    their arguments.
    """
    return "\n".join(_facts(fn, 0))


def _facts(value: Any, depth: int) -> Iterator[str]:  # noqa: PLR0912 - a case a kind of value
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, type):
        yield f"class {value.__module__}.{value.__qualname__}"
    elif depth > _MAX_DEPTH:
        yield type(value).__qualname__
    elif isinstance(value, functools.partial):
        yield "partial"
        for part in (value.func, value.args, value.keywords):
            yield from _facts(part, depth + 1)
    elif isinstance(value, types.MethodType):
        yield from _facts(value.__func__, depth + 1)
        yield from _facts(value.__self__, depth + 1)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, depth)
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}"
        for part in value:
            yield from _facts(part, depth + 1)
    elif isinstance(value, set | frozenset):
        yield f"set {sorted(map(repr, value))}"
    elif isinstance(value, dict):
        yield f"dict {len(value)}"
        for name, part in value.items():
            yield f"{name!r}"
            yield from _facts(part, depth + 1)
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype} {value.shape} {_hash_of(value)}"
    else:
        yield from _of_object(value, depth)


def _of_function(function: types.FunctionType, depth: int) -> Iterator[str]:
    yield from _of_code(function.__code__, depth)
    yield from _facts(function.__defaults__, depth + 1)
    yield from _facts(function.__kwdefaults__, depth + 1)
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not assigned yet, as of a function that calls itself
            continue
        yield from _facts(held, depth + 1)


def _of_code(code: types.CodeType, depth: int) -> Iterator[str]:
    # Names of files and numbers of lines are left out: moving a function changes nothing.
    yield f"code {code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_code(constant, depth + 1)
        else:
            yield from _facts(constant, depth + 1)


def _of_object(value: Any, depth: int) -> Iterator[str]:
    """An object that is called: its class, its `__call__` and its attributes."""
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, types.BuiltinFunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
        return
    if kind.__module__.startswith("shardwise."):
        yield repr(value)
        return
    call = vars(kind).get("__call__")
    if isinstance(call, types.FunctionType):
        yield from _of_code(call.__code__, depth + 1)
    for name, part in sorted(getattr(value, "__dict__", {}).items()):
        yield name
        yield from _facts(part, depth + 1)


def _hash_of(array: np.ndarray[Any, Any]) -> str:
    """16 hex digits of an array's content; of objects, of their reprs."""
    data = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return hashlib.sha256(data).hexdigest()[:16]
