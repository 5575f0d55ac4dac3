"""The version word: data, recipe and release. Different words may produce different batches."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwise.base.version import __version__
from shardwise.dataset.code_digest import code_digest
from shardwise.dataset.recipe_digest import recipe_digest
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.padding import Padding
from shardwise.sources.samples import Samples

# Code that is pickled by value is bytecode, which is one minor version's.
PYTHON = ".".join(platform.python_version_tuple()[:2])


@dataclass(frozen=True, slots=True)
class VersionWord:
    """The versions that must be the same at a server and its client."""

    release: str
    fingerprint: str
    recipe: str

    @classmethod
    def of(cls, dataset: Samples) -> VersionWord:
        return cls(cls.release_here(), dataset.fingerprint, recipe_digest(dataset))

    @staticmethod
    def release_here() -> str:
        return __version__

    def difference(self, other: VersionWord) -> str | None:
        """Describe how a client's version word differs from this one of a server, naming both."""
        whats = {"release": "release", "fingerprint": "data", "recipe": "decoders or transforms"}
        words = [(what, getattr(self, name), getattr(other, name)) for name, what in whats.items()]
        parts = [
            f"other {what} ({own} at the server, {client} at the client)"
            for what, own, client in words
            if own != client
        ]
        return " and ".join(parts) or None


def builder_options(builder: BatchBuilder) -> dict[str, Any]:
    """The options that a server needs beside the dataset to build the same batches; JSON."""
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
    """The builder of a server's own dataset with a client's options."""
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
