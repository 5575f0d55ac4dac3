"""Digests of code and of the values that it holds: equal in every process that has the same code.

`code_digest` covers functions and classes with all that they name in the user's own modules, so
that another version of a helper shows, too: for machines that must not differ. `held_digest` leaves
out what functions name: for what was made once and is kept. The standard library, installed
packages and this library are named only. Mutable globals (lists, dicts, objects) are not covered,
since they may be caches; nor is what a function imports while it runs.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import random
import re
import sys
import weakref
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from operator import attrgetter, itemgetter, methodcaller
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

# Objects that refer to one another are followed to this depth.
_MAX_DEPTH = 40
# Types whose `repr` is their full value.
_PLAIN = (
    int, float, complex, Decimal, str, bytes, bytearray, type(None), type(...), np.generic,
    np.dtype, range, date, time, timedelta, tzinfo, PurePath, itemgetter, attrgetter, methodcaller,
)  # fmt: skip
# Their state changes with use.
_BY_NAME = (
    random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState,
    weakref.WeakKeyDictionary, weakref.WeakValueDictionary,
)  # fmt: skip
_CODE = (FunctionType, BuiltinFunctionType, type, functools.partial)
_CACHING: Any = type(functools.cache(len))
_INSTALLED = {"site-packages", "dist-packages"}
_LOADS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_LOADS_ATTR = {"LOAD_ATTR", "LOAD_METHOD"}
_STORES_GLOBAL = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_STORES_CAPTURED = {"STORE_DEREF", "DELETE_DEREF"}


def code_digest(value: Any) -> str:
    """16 hex digits of a value, of the functions and classes in it, and of the code that they name.

    An object counts with its class's name and its state, which is `__getstate__()` where its class
    has its own; functions with bytecode, constants, defaults and captured values.
    """
    return _digest(value, follows_globals=True)


def held_digest(value: Any) -> str:
    """`code_digest` without functions' globals; it depends on Python's minor version."""
    return _digest(value, follows_globals=False)


def _digest(value: Any, *, follows_globals: bool) -> str:
    walk = _Walk(follows_globals=follows_globals)
    root = "\n".join(walk.words(value))
    # Each piece of code once, in no order. The list grows while it is read.
    pieces = {"\n".join(walk.piece(code)) for code in walk.reached}
    digest = hashlib.sha256(b"shardwise code 2\n")
    for text in (root, *sorted(pieces)):
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()[:16]


def is_users_code(value: Any) -> bool:
    """Whether a function, class or module is not Python's, not this library's and not installed."""
    is_module = isinstance(value, ModuleType)
    name = (value.__name__ if is_module else value.__module__) or "__main__"
    if not isinstance(name, str):  # a type in C, whose objects have a `__module__` each
        return False
    top = name.partition(".")[0]
    if top == "shardwise" or top in sys.stdlib_module_names:
        return False
    if name == "__main__":
        return True
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or getattr(sys.modules.get(top), "__file__", None)
    return file is None or _INSTALLED.isdisjoint(Path(file).parts)


def state_of(value: Any) -> list[Any]:
    """An object's state: (name, value) of its attributes, or what its `__getstate__` gives."""
    kind: Any = type(value)
    has_own = kind.__getstate__ is not object.__getstate__
    if is_dataclass(value) and not has_own:
        # A field of this library's classes that does not count in a comparison changes no sample.
        counted = [each for each in fields(value) if each.compare or is_users_code(kind)]
        return [(each.name, getattr(value, each.name, None)) for each in counted]
    try:
        state = value.__getstate__()
    except Exception:  # noqa: BLE001 - locks, closed files, compiled models: any can't be pickled
        return []
    if has_own and type(state) is not dict:
        return [state]
    # Python's own is None, the `__dict__`, or a pair of that and the slots.
    parts = state if isinstance(state, tuple) else (state,)
    named = {name: part for each in parts for name, part in (each or {}).items()}
    # A value that a cached property has stored is not state.
    return [
        (name, part)
        for name, part in sorted(named.items(), key=lambda item: str(item[0]))
        if not isinstance(getattr(kind, str(name), None), functools.cached_property)
    ]


def _name(code: FunctionType | type) -> str:
    """The name of code, without the module if it is a user's: `__main__` differs at a server."""
    if is_users_code(code):
        return code.__qualname__
    return f"{code.__module__}.{code.__qualname__}"


class _Walk:
    """Describes values, and collects the user's functions and classes that it meets."""

    def __init__(self, *, follows_globals: bool) -> None:
        self._follows_globals = follows_globals
        self.reached: list[Any] = []
        self._ids: set[int] = set()
        # Digests by id and depth, so that time grows with the references, not with the ways along
        # them; and the values, so that no other one gets an id.
        self._known: dict[tuple[int, int], str] = {}
        self._alive: list[Any] = []

    def words(self, value: Any, depth: int = 0) -> Iterator[str]:
        """A value as words, walked from outside to inside; below `_MAX_DEPTH` it is named only."""
        kind = type(value)
        if isinstance(value, _PLAIN):
            yield f"{kind.__qualname__} {value!r}"
            return
        name = _name(kind)
        yield name
        if depth > _MAX_DEPTH:
            return
        self._reach(value if isinstance(value, type | FunctionType) else kind)
        if isinstance(value, set | frozenset):
            yield from sorted("\n".join(self.words(part, depth + 1)) for part in value)
        elif isinstance(value, tuple):
            for part in value:
                yield from self.words(part, depth + 1)
        else:
            yield self._digest_of(value, depth)

    def _digest_of(self, value: Any, depth: int) -> str:
        """A digest of the parts of a value that may refer to itself."""
        key = id(value), depth
        if key not in self._known:
            self._alive.append(value)
            digest = hashlib.sha256()
            for part in _parts(value):
                for word in self.words(part, depth + 1):
                    digest.update(word.encode("utf-8", "surrogatepass") + b"\n")
            self._known[key] = digest.hexdigest()
        return self._known[key]

    def piece(self, code: FunctionType | type) -> Iterator[str]:
        """A function or class of the user's, and what it names."""
        yield from self.words(code)
        named: Iterable[tuple[str, Any]] = ()
        if not isinstance(code, FunctionType):
            named = _members(code)
        elif self._follows_globals:
            named = _globals_of(code.__code__, code.__globals__)
        for name, value in sorted(dict(named).items()):
            yield f"names {name}"
            yield from self._describe_object(value)

    def _describe_object(self, value: Any) -> Iterator[str]:
        """The objects that code names: functions, classes and constants; of others the type."""
        if isinstance(value, staticmethod | classmethod | MethodType):
            yield from self._describe_object(value.__func__)
        elif isinstance(value, functools.cached_property):
            yield from self._describe_object(value.func)
        elif isinstance(value, property):
            for each in (value.fget, value.fset, value.fdel):
                yield from self._describe_object(each)
        elif isinstance(value, FunctionType | type):
            if is_users_code(value):
                yield from self.words(value)
            else:
                yield _name(value)
        elif isinstance(value, functools.partial) or _is_constant(value):
            yield from self.words(value)
        elif isinstance(value, _CACHING):
            yield from self._describe_object(value.__wrapped__)
        else:
            yield _name(type(value))
            self._reach(type(value))

    def _reach(self, code: FunctionType | type) -> None:
        if id(code) not in self._ids and is_users_code(code):
            self._ids.add(id(code))
            self.reached.append(code)


def _parts(value: Any) -> list[Any]:  # noqa: PLR0911 - one for each type
    """The parts that make up a value, in an order that does not depend on the process."""
    if isinstance(value, _BY_NAME):
        return []
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, list | deque | array):
        return list(value)
    if isinstance(value, CodeType):
        return [value.co_code, value.co_consts, value.co_names, value.co_varnames]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, _CACHING):
        return [value.__wrapped__]
    if isinstance(value, FunctionType):
        defaults = [value.__defaults__, value.__kwdefaults__]
        return [value.__name__, value.__code__, *defaults, _list_captured_values(value)]
    if isinstance(value, type | ModuleType):
        return [getattr(value, "__qualname__", None) or value.__name__]
    if isinstance(getattr(value, "__qualname__", None), str):  # a function in C, maybe bound
        return [value.__qualname__, getattr(value, "__self__", None), *state_of(value)]
    return _parts_of_data(value)


def _parts_of_data(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype.hasobject else _hash_of(value)
        return [value.dtype, value.shape, content]
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    if isinstance(value, re.Pattern):
        return [value.pattern, value.flags]
    if _is_of_torch(value, "Tensor"):
        return [value.dtype, tuple(value.shape), _hash_of_tensor(value)]
    if _is_of_torch(value, "dtype", "device"):
        return [repr(value)]
    return state_of(value)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Bases, methods and constants of a class; what Python keeps in it is left out."""
    for number, base in enumerate(kind.__bases__):
        yield f"base {number}", base
    if issubclass(kind, Enum):
        yield "members", tuple((name, each.value) for name, each in kind.__members__.items())
        return
    for name, member in vars(kind).items():
        is_special = name.startswith("__") and not isinstance(member, FunctionType)
        is_slot = isinstance(member, MemberDescriptorType)
        if not is_special and not is_slot and not name.startswith("__annotat"):
            yield name, member


def _globals_of(code: CodeType, space: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The globals, and names in the user's modules, that code reads and does not assign itself."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    stored = {step.argval for step in steps if step.opname in _STORES_GLOBAL}
    path, value = "", None
    for step in steps:
        if step.opname in _LOADS_GLOBAL:
            path, names = step.argval, space
        elif step.opname in _LOADS_ATTR and isinstance(value, ModuleType) and is_users_code(value):
            path, names = f"{path}.{step.argval}", vars(value)
        else:
            names = {}
        value = names.get(step.argval)
        is_special = str(step.argval).startswith("__")
        if step.argval in names and path not in stored and not is_special:
            yield path, value
    for inner in _code_within(code):
        yield from _globals_of(inner, space)


def _is_constant(value: Any) -> bool:
    """Whether a global is of a kind that programs don't change."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    is_constant = isinstance(value, (*_PLAIN, *_CODE, np.ndarray, Enum, re.Pattern))
    return is_constant or _is_of_torch(value, "Tensor", "dtype")


def _hash_of(values: np.ndarray[Any, Any]) -> str:
    flat = np.ascontiguousarray(values).reshape(-1)
    return hashlib.sha256(flat.view(np.uint8).data).hexdigest()


def _is_of_torch(value: Any, *names: str) -> bool:
    torch = sys.modules.get("torch")
    return any(isinstance(value, getattr(torch, name, ())) for name in names)


def _hash_of_tensor(tensor: Any) -> str | None:
    """The hash of its bytes; None if they are not an array."""
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return _hash_of(plain.reshape(-1).view(torch.uint8).numpy())


def _list_captured_values(function: FunctionType) -> list[Any]:
    """The values that a function captured, but for variables that it assigns, as counters."""
    code = function.__code__
    assigned = set(_list_assigned_names(code))
    captured = []
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            if name not in assigned:
                captured.append(cell.cell_contents)
    return captured


def _list_assigned_names(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in _STORES_CAPTURED:
            yield step.argval
    for inner in _code_within(code):
        yield from _list_assigned_names(inner)


def _code_within(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
