"""The version word: which data, which recipe, which release. Other words make other batches.

The recipe is what a dataset does to its samples. Its digest is of names, settings and code, not of
a pickle: that only names the functions of modules, and its bytes may differ between two processes.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwise.dataset.code_digest import code_digest, is_users_code, state_of
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.padding import Padding
from shardwise.samples import Samples
from shardwise.version import __version__

# Code that is pickled by value is bytecode, which is one minor version's.
PYTHON = ".".join(platform.python_version_tuple()[:2])


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
        return __version__

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
        "collate": None if builder.collate is None else code_digest(builder.collate),
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

    Decoders and functions count with the code that they call in the user's modules, as
    `code_digest` says; so do a source and a wrapped dataset whose classes are the user's.
    """
    return code_digest(_recipe(dataset))


def _recipe(dataset: Any) -> Any:
    parts = getattr(dataset, "parts", None)
    if isinstance(parts, Mapping):  # of a mixture: its datasets have recipes of their own
        own: Any = [(name, _recipe(part)) for name, part in parts.items()]
    else:
        transforms = getattr(dataset, "transforms", None)
        own = None if transforms is None else (transforms.decoders, transforms.maps)
    return (type(dataset).__qualname__, tuple(dataset.fields), own, _reading(dataset))


def _reading(dataset: Any) -> list[Any]:
    """Code of the user's that reads samples: a source, or a dataset in `sw.wrap`."""
    source = getattr(dataset, "source", None)
    wrapped = getattr(source, "dataset", None)
    kinds = [type(each) for each in (source, wrapped) if is_users_code(type(each))]
    # As `transform=` of torchvision's datasets.
    state = [each for each in state_of(wrapped) if isinstance(each, tuple) and callable(each[-1])]
    return [*kinds, *state]
