"""What a dataset does to its source's samples: fields, decoders, functions, a subset."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs import default_decoder, resolve
from shardwise.codecs.protocol import has_mask
from shardwise.columns import Layout, mask_of
from shardwise.dataset.field import Field
from shardwise.dataset.map_function import MapFunction
from shardwise.dataset.raw_rows import name_of

__all__ = ["Transforms"]


@dataclass(frozen=True, slots=True, eq=False)
class Transforms:
    """Immutable; each method returns a new one.

    Attributes:
        selected: the fields that are read, in order; None for all.
        required: fields asked for by name.
        decoders: field -> decoder.
        maps: functions of samples, in the order in which they run.
        indices: int64 `[samples]`, the source's ids of the samples; None for all.
    """

    selected: tuple[str, ...] | None = None
    required: frozenset[str] = frozenset()
    decoders: Mapping[str, Any] = field(default_factory=dict)
    maps: tuple[MapFunction, ...] = ()
    indices: NDArray[np.int64] | None = None

    def select(self, names: Sequence[str], known: Sequence[str]) -> Transforms:
        """Keep these of the known fields."""
        self.check("select", names, known)
        decoders = {name: fn for name, fn in self.decoders.items() if name in names}
        selected = tuple(dict.fromkeys(names))
        return replace(self, selected=selected, required=frozenset(names), decoders=decoders)

    def with_parts(self, parts: Sequence[str], known: Sequence[str]) -> Transforms:
        """Read parts of fields too: "image.bytes" in place of the "image" that it is a part of."""
        whole = {part.rpartition(".")[0] for part in parts}
        return replace(self, selected=(*(name for name in known if name not in whole), *parts))

    def decode(
        self, decoders: Mapping[str, Any], known: Sequence[str], *, values: Collection[str]
    ) -> Transforms:
        """Decode these of the known fields; of `values` every callable is a decoder as it is."""
        self.check("decode", tuple(decoders), known)
        resolved = {
            # Codecs are about bytes: of values, int is int.
            name: spec if name in values and callable(spec) else resolve(spec, name)
            for name, spec in decoders.items()
        }
        for name, decoder in resolved.items():
            if has_mask(decoder) and mask_of(name) in known:
                raise ValueError(
                    f"decode({name}={decoder!r}) makes a field {mask_of(name)!r}, and the samples "
                    "have one: leave it out with select()"
                )
        return replace(
            self,
            decoders={**self.decoders, **resolved},
            required=self.required.union(resolved),
        )

    def decode_by_default(self, known: Sequence[str], *, values: Collection[str]) -> Transforms:
        """Decode the known fields that have a default decoder, and none yet; values stay."""
        self.check("decode", (), known)
        stored = [name for name in known if name not in values]
        if known and not stored:
            raise ValueError(
                "decode() without arguments goes by the names of stored files, and these samples "
                f"are values: name the fields to decode, of {', '.join(map(repr, known))}"
            )
        defaults = {name: default_decoder(name) for name in stored}
        known_ones = {name: fn for name, fn in defaults.items() if fn is not None}
        return replace(self, decoders={**known_ones, **self.decoders})

    def map(self, fn: Any) -> Transforms:
        """Add a function of samples."""
        return replace(self, maps=(*self.maps, MapFunction.of(fn, place=len(self.maps))))

    def fields(self, known: Sequence[str], layouts: Mapping[str, Layout]) -> tuple[Field, ...]:
        """The fields that are read, with their decoders, and with layouts where they are arrays."""
        return tuple(
            Field.of(
                name,
                self.decoders.get(name),
                required=name in self.required,
                layout=layouts.get(name),
                number=number,
            )
            for number, name in enumerate(known)
        )

    def steps(self) -> Iterator[str]:
        """The calls that make these transforms, for people."""
        if self.selected is not None:
            yield f"select({', '.join(map(repr, self.selected))})"
        if self.decoders:
            yield f"decode({', '.join(f'{n}={name_of(fn)}' for n, fn in self.decoders.items())})"
        for function in self.maps:
            yield f"map({name_of(function.fn)})"
        if self.indices is not None:
            yield f"subset({len(self.indices)} samples)"

    def check(self, method: str, names: Sequence[Any], known: Sequence[str]) -> None:
        """Refuse names of fields that are not there, or not there any more after a `map()`."""
        if self.maps:
            raise ValueError(
                f"{method}() after map(): it is about fields as they are stored, so call it before"
            )
        for name in names:
            if not isinstance(name, str) or name not in known:
                there = ", ".join(map(repr, known)) or "none"
                kind = "fields" if self.selected is None else "selected fields"
                hint = "" if isinstance(name, str) else "; samples are chosen by ds.subset(numbers)"
                raise ValueError(f"{method}(): no field {name!r:.80}: the {kind} are {there}{hint}")
