"""The user's functions from sample to sample, with randomness that is keyed.

The generator that a function gets depends on (seed, epoch, sample, place of the function) alone:
not on the worker, the batch or the cluster (I3, I5).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.dataset.keyed_random import seeded_generator
from shardwise.dataset.raw_rows import RawRows, name_of
from shardwise.plan.permute import mix

__all__ = ["MapFunction", "columns_of"]


@dataclass(frozen=True, slots=True)
class MapFunction:
    """One function of a `map()`.

    Attributes:
        fn: sample -> sample.
        takes_rng: it has a parameter called `rng`.
        place: how many functions run before it.
    """

    fn: Callable[..., Any]
    takes_rng: bool
    place: int

    @classmethod
    def of(cls, fn: Callable[..., Any], place: int) -> MapFunction:
        """Look at the function's signature once.

        Raises:
            TypeError: it can't be called as fn(sample) or fn(sample, rng=...).
        """
        if not callable(fn):
            raise TypeError(f"map() takes a function of a sample, not {fn!r}")
        try:
            signature = inspect.signature(fn)
        except ValueError:
            # Some built-ins tell no signature.
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
        """Transform the sample in this row.

        Raises:
            DataError: the function raised.
            TypeError: it returned no dict, or a "__key__" that is no str.
        """
        key = sample["__key__"]
        try:
            rows.begin(row, -1 - self.place)
            if self.takes_rng:
                word = mix(rows.keys.seed, rows.keys.epoch, self.place)
                rng = seeded_generator(int(rows.columns.ids[row]), word)
                sample = self.fn(sample, rng=rng)
            else:
                sample = self.fn(sample)
        except Exception as exc:  # noqa: BLE001 - transforms are the user's code
            rows.blame(row, self.fn, exc)
        if not isinstance(sample, dict):
            raise TypeError(
                f"{name_of(self.fn)} returned {type(sample).__name__} for the sample {key!r}: a "
                "transform returns a sample dict; to leave samples out use subset()"
            )
        if "__key__" not in sample:
            # A new dict: the function may return the same one again.
            return {"__key__": key, **sample}
        if not isinstance(sample["__key__"], str):
            raise TypeError(
                f"{name_of(self.fn)} made the key {sample['__key__']!r} of the sample {key!r}: "
                "a __key__ is a str"
            )
        return sample


def columns_of(rows: RawRows, samples: Sequence[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """Turn transformed samples into columns again.

    Raises:
        DataError: they do not all have the same fields; it names the first odd one.
    """
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
