"""What a dataset does with what its source holds: fields, decoders, transforms, a subset.

Imports codecs, fields and transforms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs import default_decoder, resolve
from shardwise.columns import Layout
from shardwise.dataset.fields import Field, name_of
from shardwise.dataset.map_function import Transform

__all__ = ["Recipe"]


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """Immutable; each method returns a new one.

    Attributes:
        selected: the fields that are read, in order; None for all.
        required: fields asked for by name.
        decoders: field -> decoder.
        transforms: in the order in which they run.
        indices: int64 `[samples]`, the source's ids of the samples; None for all.
    """

    selected: tuple[str, ...] | None = None
    required: frozenset[str] = frozenset()
    decoders: Mapping[str, Any] = field(default_factory=dict)
    transforms: tuple[Transform, ...] = ()
    indices: NDArray[np.int64] | None = None

    def select(self, names: Sequence[str], known: Sequence[str]) -> Recipe:
        """Keep these of the known fields."""
        self.check("select", names, known)
        decoders = {name: fn for name, fn in self.decoders.items() if name in names}
        selected = tuple(dict.fromkeys(names))
        return replace(self, selected=selected, required=frozenset(names), decoders=decoders)

    def with_parts(self, parts: Sequence[str], known: Sequence[str]) -> Recipe:
        """Read parts of fields too: "image.bytes" in place of the "image" that it is a part of."""
        whole = {part.rpartition(".")[0] for part in parts}
        return replace(self, selected=(*(name for name in known if name not in whole), *parts))

    def decode(
        self, decoders: Mapping[str, Any], known: Sequence[str], *, values: Collection[str]
    ) -> Recipe:
        """Decode these of the known fields; of `values` every callable is a decoder as it is."""
        self.check("decode", tuple(decoders), known)
        resolved = {
            # Codecs are about bytes: of values, int is int.
            name: spec if name in values and callable(spec) else resolve(spec, name)
            for name, spec in decoders.items()
        }
        return replace(
            self,
            decoders={**self.decoders, **resolved},
            required=self.required.union(resolved),
        )

    def decode_by_default(self, known: Sequence[str], *, values: Collection[str]) -> Recipe:
        """Decode the known fields that have a default decoder, and none yet; values stay."""
        self.check("decode", (), known)
        stored = [name for name in known if name not in values]
        if known and not stored:
            raise ValueError(
                "decode() without arguments goes by the names of stored files, and these samples "
                f"are values: name the fields to decode, of {', '.join(map(repr, known))}"
            )
        found = {name: default_decoder(name) for name in stored}
        defaults = {name: decoder for name, decoder in found.items() if decoder is not None}
        return replace(self, decoders={**defaults, **self.decoders})

    def map(self, fn: Any) -> Recipe:
        """Add a transform."""
        transform = Transform.of(fn, place=len(self.transforms))
        return replace(self, transforms=(*self.transforms, transform))

    def take(self, indices: NDArray[np.int64]) -> Recipe:
        """Take the samples that have these ids in the source."""
        return replace(self, indices=indices)

    def fields(self, known: Sequence[str], layouts: Mapping[str, Layout]) -> tuple[Field, ...]:
        """The fields that are read, with their decoders, and with layouts where they are arrays."""
        return tuple(
            Field(name, self.decoders.get(name), name in self.required, layouts.get(name))
            for name in known
        )

    def steps(self) -> Iterator[str]:
        """The calls that make this recipe, for people."""
        if self.selected is not None:
            yield f"select({', '.join(map(repr, self.selected))})"
        if self.decoders:
            yield f"decode({', '.join(f'{n}={name_of(fn)}' for n, fn in self.decoders.items())})"
        for transform in self.transforms:
            yield f"map({name_of(transform.fn)})"
        if self.indices is not None:
            yield f"subset({len(self.indices)} samples)"

    def check(self, method: str, names: Sequence[Any], known: Sequence[str]) -> None:
        """Refuse names of fields that are not there, or not there any more after a `map()`."""
        if self.transforms:
            raise ValueError(
                f"{method}() after map(): it is about fields as they are stored, so call it before"
            )
        for name in names:
            if name not in known:
                there = ", ".join(map(repr, known)) or "none"
                kind = "fields" if self.selected is None else "selected fields"
                raise ValueError(f"{method}(): no field {name!r}: the {kind} are {there}")
