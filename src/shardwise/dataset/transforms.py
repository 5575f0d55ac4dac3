"""The transforms of a source's samples: fields, decoders, functions, a subset.

The generator that a function gets depends on (seed, epoch, sample, position of the function) alone:
not on the worker, the batch or the cluster (I3, I5).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import no_such_field
from shardwise.base.columns import Layout, mask_of
from shardwise.codecs import default_decoder, resolve
from shardwise.codecs.optional import EachDecoder
from shardwise.codecs.protocol import has_mask
from shardwise.dataset.field import RESERVED, Field
from shardwise.dataset.keyed_random import seeded_generator
from shardwise.dataset.raw_rows import RawRows, name_of
from shardwise.plan.permute import mix
from shardwise.sources.protocol import own_names_of

# Fields that a function may not make; it may make keys.
_MADE = RESERVED - {"__key__"}


@dataclass(frozen=True, slots=True)
class MapFunction:
    """One function of a `map()`; `place` is how many run before it."""

    fn: Callable[..., Any]
    takes_rng: bool
    place: int

    @classmethod
    def of(cls, fn: Callable[..., Any], place: int) -> MapFunction:
        """Look at the function's signature once."""
        if not callable(fn):
            raise TypeError(f"map() takes a function of a sample, not {fn!r}")
        try:
            signature = inspect.signature(fn)
        except ValueError:
            # Some built-ins have no signature.
            return cls(fn, takes_rng=False, place=place)
        takes_rng = "rng" in signature.parameters
        try:
            signature.bind({}, **({"rng": None} if takes_rng else {}))
        except TypeError as exc:
            raise TypeError(
                f"map() calls its function as fn(sample), or as fn(sample, rng=generator) if it "
                f"has a parameter rng; {name_of(fn)}{signature} can't be called so: {exc}"
            ) from None
        return cls(fn, takes_rng=takes_rng, place=place)

    def __call__(self, sample: dict[str, Any], rows: RawRows, row: int) -> dict[str, Any]:
        """Transform the sample in this row."""
        key = sample["__key__"]
        own = () if _MADE.isdisjoint(sample) else _MADE & sample.keys()
        # The user's code: it may return anything.
        made: Any
        try:
            rows.begin(row, -1 - self.place)
            if self.takes_rng:
                word = mix(rows.keys.seed, rows.keys.epoch, self.place)
                rng = seeded_generator(int(rows.columns.ids[row]), word)
                made = self.fn(sample, rng=rng)
            else:
                made = self.fn(sample)
        except BaseException as exc:  # noqa: BLE001 - transforms are the user's code
            rows.blame(row, self.fn, exc)
        if not isinstance(made, dict):
            raise TypeError(
                f"{name_of(self.fn)} returned {type(made).__name__} for the sample {key!r}: a "
                "transform returns a sample dict; to leave samples out use subset(), and for "
                "batches that are tuples as_tuple=('jpg', 'cls') of the loader"
            )
        if not _MADE.isdisjoint(made):
            odd = (_MADE & made.keys()).difference(own, own_names_of(self.fn))
            if odd:
                raise TypeError(
                    f"{name_of(self.fn)} made the field {min(odd)!r} of the sample {key!r}, which "
                    "is a name of batches: call it something else"
                )
        if "__key__" not in made:
            # A new dict: the function may return the same one again.
            return {"__key__": key, **made}
        if not isinstance(made["__key__"], str):
            raise TypeError(
                f"{name_of(self.fn)} made the key {made['__key__']!r} of the sample {key!r}: "
                "a __key__ is a str"
            )
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Transforms:
    """The fields, decoders, functions and indices of a dataset; each method returns a new one."""

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
            # Codecs are about bytes: of values, int is int. A pattern is a list of members.
            name: EachDecoder(resolve(spec, name)) if "*" in name and name in values
            else spec if name in values and callable(spec) else resolve(spec, name)
            for name, spec in decoders.items()
        }  # fmt: skip
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
                kind = "fields" if self.selected is None else "selected fields"
                hint = ""
                if not isinstance(name, str):
                    hint = "; samples are chosen by ds.subset(numbers)"
                elif pattern := next((each for each in known if matching(each, (name,))), None):
                    hint = f"; it is one of {pattern!r}: name the member alone, or the pattern"
                raise ValueError(f"{method}(): {no_such_field(name, known, kind=kind)}{hint}")


def matching(name: Any, fields: Collection[str]) -> list[str]:
    """The field of this name, or those of a pattern: "*.jpg" also has "jpg", after a dot."""
    if name in fields or not isinstance(name, str) or "*" not in name:
        return [name] if name in fields else []
    return [field for field in fields if fnmatchcase(field, name) or fnmatchcase(f".{field}", name)]


def columns_of(rows: RawRows, samples: Sequence[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """Turn transformed samples into columns again."""
    if not samples:
        return {"__key__": []}
    names = samples[0].keys()
    for row, sample in enumerate(samples):
        if sample.keys() != names:
            odd = min(sample.keys() ^ names, key=str)
            verb = "has" if odd in sample else "lacks"
            raise rows.error(
                row,
                f"after map() the sample {verb} {odd!r}, unlike the sample "
                f"{samples[0]['__key__']!r} beside it: return the same fields for every sample, "
                "and select() fields that every sample has",
                field=str(odd),
            )
    return {name: [sample[name] for sample in samples] for name in names}
