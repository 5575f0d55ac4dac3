"""The version word: which data, which recipe, which release. Other words make other batches.

The recipe is what a dataset does to its samples. Its digest is of names, settings and the code of
functions, not of a pickle, whose bytes may differ between two processes.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import version
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.padding import Padding
from shardwise.samples import Samples

__all__ = ["PYTHON", "VersionWord", "builder_of", "builder_options", "recipe_digest"]

# Code that is pickled by value is bytecode, which is one minor version's.
PYTHON = ".".join(platform.python_version_tuple()[:2])
_MAX_DEPTH = 40


@dataclass(frozen=True, slots=True)
class VersionWord:
    """What must be the same at a server and its client.

    Attributes:
        release: of this library.
        fingerprint: of the data.
        recipe: 16 hex digits of what is done to a sample.
    """

    release: str
    fingerprint: str
    recipe: str

    @classmethod
    def of(cls, dataset: Samples) -> VersionWord:
        """The word of a dataset."""
        return cls(cls.release_here(), dataset.fingerprint, recipe_digest(dataset))

    @staticmethod
    def release_here() -> str:
        """The release that is installed here."""
        return version("shardwise")

    def difference(self, other: VersionWord) -> str | None:
        """In what the word of a client differs from this one of a server, naming both."""
        whats = {"release": "release", "fingerprint": "data", "recipe": "decoders or transforms"}
        words = [(what, getattr(self, name), getattr(other, name)) for name, what in whats.items()]
        parts = [
            f"other {what} ({own} at the server, {client} at the client)"
            for what, own, client in words
            if own != client
        ]
        return " and ".join(parts) or None


def builder_options(builder: BatchBuilder) -> dict[str, Any]:
    """What a server needs beside the dataset to build the same batches; JSON."""
    padding = builder.ragged.padding
    value = padding.value
    # JSON has no complex numbers.
    parts = [value.real, value.imag] if isinstance(value, complex) else value
    return {
        "seed": builder.seed,
        "ragged": builder.ragged.ragged,
        "on_error": builder.on_error,
        "padding": {**asdict(padding), "value": parts},
    }


def builder_of(dataset: Samples, options: Mapping[str, Any]) -> BatchBuilder:
    """The builder of a server's own dataset with a client's options.

    Raises:
        TypeError, ValueError: the options mean nothing.
    """
    form = dict(options["padding"])
    fields, value = form.pop("fields"), form.pop("value")
    padding = Padding(
        fields=None if fields is None else tuple(fields),
        dims=tuple(form.pop("dims")),
        value=complex(*value) if isinstance(value, list) else value,
        **form,
    )
    is_padded = options["ragged"] == "pad"
    return BatchBuilder(
        dataset,
        seed=options["seed"],
        ragged=options["ragged"],
        on_error=options["on_error"],
        collate=padding if is_padded else None,
    )


def recipe_digest(dataset: Samples) -> str:
    """16 hex digits of what a dataset does to its samples; the same in every process.

    A function counts with its code, defaults and captured values, also where it was imported. What
    a function calls does not count: keep it in step yourself, as with any program on two machines.
    """
    digest = hashlib.sha256(b"shardwise recipe 1\n")
    for word in _words(_recipe(dataset), frozenset()):
        digest.update(word.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def _recipe(dataset: Any) -> Any:
    parts = getattr(dataset, "parts", None)
    if isinstance(parts, Mapping):  # of a mixture: its datasets have recipes of their own
        own: Any = [(name, _recipe(part)) for name, part in parts.items()]
    else:
        transforms = getattr(dataset, "transforms", None)
        own = None if transforms is None else (transforms.decoders, transforms.maps)
    return (type(dataset).__qualname__, tuple(dataset.fields), own)


def _words(value: Any, above: frozenset[int]) -> Iterator[str]:
    """A value as words, walked from outside to inside; a value inside itself is named only."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield f"{name} {value!r}"
        return
    if id(value) in above or len(above) > _MAX_DEPTH:
        yield f"again {name}"
        return
    above |= {id(value)}
    if isinstance(value, np.ndarray):
        content = repr(value) if value.dtype.hasobject else value.tobytes().hex()
        yield f"array {value.dtype} {value.shape} {hashlib.sha256(content.encode()).hexdigest()}"
        return
    yield name
    for part in _parts(value):
        yield from _words(part, above)


def _parts(value: Any) -> list[Any]:  # noqa: PLR0911 - one for each type
    """What makes a value what it is, in an order that does not depend on the process."""
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, CodeType):
        return [value.co_code, value.co_consts, value.co_names, value.co_varnames]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        return [value.__name__, value.__code__, value.__defaults__, value.__kwdefaults__, cells]
    if isinstance(value, type | ModuleType | BuiltinFunctionType):
        return [getattr(value, "__qualname__", None) or value.__name__]
    if is_dataclass(value):
        return [(each.name, getattr(value, each.name)) for each in fields(value)]
    return list(getattr(value, "__dict__", {}).items())


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
