"""A pipeline's stages on one sample, and samples as the pipeline would have them.

The stages run as they are, each on a stream of one sample. They pickle with the dataset, and keep
nothing between samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from shardwise.errors import DataError

Stage = Callable[[Iterator[Any]], Any]


@dataclass(eq=False, repr=False)
class RunStages:
    """A transform of a dataset: a sample dict through stages, and back to a dict."""

    stages: Sequence[Stage]
    names: tuple[str, ...] | None
    outer_names: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"RunStages({', '.join(map(repr, self.stages))})"

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample behind all stages."""
        item: Any = sample if self.names is None else tuple(sample[name] for name in self.names)
        for stage in self.stages:
            found = list(islice(iter(stage(iter([item]))), 2))
            if len(found) != 1:
                raise DataError(
                    f"{stage!r} made {'no sample' if not found else 'several samples'} of one: "
                    "leave samples out by Dataset.subset, or with on_error='skip'"
                )
            (item,) = found
        return self._as_fields(item)

    def _as_fields(self, item: Any) -> dict[str, Any]:
        if isinstance(item, dict):
            kept = {"__key__"} & item.keys()
            kept.update(name for name in item if not str(name).startswith("__"))
            return {str(name): value for name, value in item.items() if name in kept}
        if not isinstance(item, tuple | list):
            return {"value": item}
        names: Sequence[str] = self.outer_names or ()
        if len(names) != len(item):
            names = [str(place) for place in range(len(item))]
        return dict(zip(names, item, strict=True))


@dataclass(eq=False, repr=False)
class DecodeField:
    """A field's decoder that asks a pipeline's `Decoder`."""

    decode1: Callable[[str, bytes], Any]
    name: str

    def __repr__(self) -> str:
        return f"DecodeField({self.name!r})"

    def __call__(self, data: bytes) -> Any:
        """The field's value."""
        return self.decode1(self.name, bytes(data))


@dataclass(eq=False, repr=False)
class Collate:
    """A loader's `collate` that calls a pipeline's, with samples as the pipeline has them."""

    function: Callable[[list[Any]], Any] | None
    names: tuple[str, ...] | None

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        """The batch."""
        items: list[Any] = samples
        if self.names is not None:
            items = [tuple(sample[name] for name in self.names) for sample in samples]
        return items if self.function is None else self.function(items)
