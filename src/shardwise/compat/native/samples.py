"""A pipeline's stages on one sample, and samples as the pipeline would have them.

What `select` keeps is found before training, as a subset, so that ranks take equal steps (I2).
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.compat.native.stages import argument, name_of, refusal
from shardwise.compat.webdataset.utils import FilterFunction
from shardwise.dataset import Dataset
from shardwise.sources.tar.source import TarSource
from shardwise.storage import is_local

Stage = Callable[[Iterator[Any]], Any]


@dataclass(eq=False, repr=False)
class RunStages:
    """A transform of a dataset: a sample dict through stages, and back to a dict."""

    stages: Sequence[Stage]
    names: tuple[str, ...] | None
    outer_names: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"RunStages({', '.join(map(name_of, self.stages))})"

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        item: Any = sample if self.names is None else tuple(sample[name] for name in self.names)
        for stage in self.stages:
            found = list(islice(iter(stage(iter([item]))), 2))
            if len(found) != 1:
                raise DataError(
                    f"the stage {name_of(stage)} made "
                    f"{'no sample' if not found else 'several samples'} of one: leave "
                    "samples out by Dataset.subset, or with on_error='skip'"
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
        return self.decode1(self.name, bytes(data))


@dataclass(eq=False, repr=False)
class Collate:
    """A loader's `collate` that calls a pipeline's, with samples as the pipeline has them."""

    function: Callable[[list[Any]], Any] | None
    names: tuple[str, ...] | None
    # Called with each batch of its pipeline by a loader without a batch size.
    after: Callable[[Any], Any] | None = None

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        items: list[Any] = samples
        if self.names is not None:
            items = [tuple(sample[name] for name in self.names) for sample in samples]
        batch = items if self.function is None else self.function(items)
        return batch if self.after is None else self.after(batch)


class _LazySample(dict[str, Any]):
    """A sample that is read when `[]` or `get` first looks up the value of a field."""

    def __init__(
        self, known: dict[str, Any], fields: Iterable[str], read: Callable[[], dict[str, Any]]
    ) -> None:
        super().__init__(known | dict.fromkeys(fields))
        self._read: Callable[[], dict[str, Any]] | None = read
        # An error of the reading, which the function that looked at the sample may have caught.
        self.error: Exception | None = None

    def __getitem__(self, name: str) -> Any:
        read = self._read
        if read is not None and super().__getitem__(name) is None:
            self._read = None
            try:
                self.update(read())
            except Exception as error:
                self.error = error
                raise
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - this is that method


def _only_looks_up(function: Any) -> bool:
    """Whether all that a function does with its first argument is `[NAME]`, get, keys, in or for.

    Anything else, such as `type(sample)` or C code that reads the dict, needs a real one.
    """
    code, at = getattr(function, "__code__", None), int(inspect.ismethod(function))
    if code is None or code.co_argcount <= at:
        return False
    name, steps = code.co_varnames[at], list(dis.get_instructions(code))
    if name in code.co_cellvars or {"eval", "exec", "locals", "vars"} & {*code.co_names}:
        return False
    for step, after, second in zip(steps, steps[1:], steps[2:], strict=False):
        if isinstance(step.argval, tuple) and name in step.argval:
            return False
        if "FAST" in step.opname and step.argval == name:
            is_entry = after.opname == "LOAD_CONST" and (
                second.opname == "BINARY_SUBSCR" or second.argrepr == "[]"
            )
            is_method = after.opname.startswith("LOAD_") and after.argval in ("get", "keys")
            if not (is_entry or is_method or after.opname in ("CONTAINS_OP", "GET_ITER")):
                return False
    return True


def chosen(
    dataset: Dataset, stage: FilterFunction, names: tuple[str, ...] | None, *, skips: bool
) -> NDArray[np.bool_]:
    """Evaluate the predicate of a `select` for each sample: bool `[num_samples]`.

    It is called once per sample, in order, as in a pipeline: it may count, draw random numbers or
    catch exceptions. Samples whose values it never looks at are not read. With `skips`, those that
    can't be read are chosen: the loader skips and counts them.
    """
    mask = np.ones(len(dataset), np.bool_)
    predicate = argument(stage, 0, "predicate", None)
    is_lazy = _only_looks_up(predicate)
    for row, sample in enumerate(_samples(dataset, names, is_lazy=is_lazy, skips=skips)):
        if isinstance(sample, DataError):
            continue
        before = dict(sample) if isinstance(sample, dict) and not is_lazy else None
        try:
            mask[row] = bool(predicate(sample))
        except Exception:
            if getattr(sample, "error", None) is None:
                raise
        # A failed read is an error even if the user's function caught the exception.
        error = getattr(sample, "error", None)
        if error is not None and not skips:
            raise error
        mask[row] |= error is not None
        if before is not None and _entries(before) != _entries(sample):
            raise refusal(stage, "it changes samples", "a .map(fn) for the change")
    return mask


def _entries(sample: dict[str, Any]) -> list[tuple[str, int]]:
    return [(name, id(value)) for name, value in sample.items() if not name.startswith("__")]


def _samples(
    dataset: Dataset, names: tuple[str, ...] | None, *, is_lazy: bool, skips: bool
) -> Iterator[Any]:
    """The samples as the pipeline has them; lazy ones where an index knows their fields."""
    source, indices = dataset.source, dataset.transforms.indices
    if names is not None or dataset.is_mapped or not isinstance(source, TarSource):
        for found in _readable(dataset) if skips else dataset:
            is_error = isinstance(found, DataError)
            yield found if is_error else Collate(None, names)([dict(found)])[0]
        return
    known = dataset.fields
    ids = range(len(dataset)) if indices is None else indices.tolist()
    for row, sample in enumerate(ids):
        shard, place = source.shards.locate(sample)
        index, url = source.shards.index(shard), source.shards.manifest.urls[shard]
        # Pipelines say which shard a sample is of, and predicates go by it.
        about = {"__key__": index.keys[place], "__url__": url}
        about |= {"__local_path__": url} if is_local(url) else {}
        spans = index.locate_one(known, place)
        fields = [name for (_, size), name in zip(spans, known, strict=True) if size >= 0]
        read = partial(dataset.__getitem__, row)
        try:
            yield _LazySample(about, fields, read) if is_lazy else about | read()
        except DataError as error:
            if not skips:
                raise
            yield error


def _readable(dataset: Dataset) -> Iterator[Any]:
    """All samples in order, and the error in place of one that can't be read."""
    for row in range(len(dataset)):
        try:
            yield dataset[row]
        except DataError as error:
            yield error
