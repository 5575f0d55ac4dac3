"""The dataset of a mixture: samples of several datasets, with the name of theirs in each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.columns import Layout
from shardwise.dataset.dataset import Dataset
from shardwise.dataset.samples import rows_by_part
from shardwise.dataset.transforms import matching
from shardwise.extensions.mixtures.sampler import MixtureSampler
from shardwise.extensions.mixtures.source import SOURCE, MixSource, is_mixture
from shardwise.sources.manifest import checked_ids
from shardwise.sources.protocol import common_entries
from shardwise.sources.samples import LoadCost, LoadRequest
from shardwise.storage import PoolRanges


class MixedDataset(Dataset):
    """The result of `shardwise.mix`: a dataset that brings its order.

    `select`, `decode` and `map` are done to each of its datasets that has the fields; a function of
    `map` finds "__source__" in the sample, and its `rng` is keyed by the dataset's name, too.
    """

    def __init__(
        self, parts: Mapping[str, Dataset], sampler: MixtureSampler, *, is_labelled: bool = False
    ) -> None:
        self._mixed = MixSource(parts)
        self._sampler = sampler
        # Whether the functions of the datasets find "__source__" in the sample already.
        self._is_labelled = is_labelled
        super().__init__(self._mixed)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the datasets and the order; see `Dataset`."""
        parts, sampler = self._mixed.parts, self._sampler
        return {"parts": parts, "sampler": sampler, "is_labelled": self._is_labelled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        MixedDataset.__init__(self, **state)

    def __repr__(self) -> str:
        weights = self._sampler.schedule.weights()
        parts = ", ".join(
            f"{name!r}: ({part!r}, {weight:.4g})"
            for (name, part), weight in zip(self._mixed.parts.items(), weights, strict=True)
        )
        sampler = self._sampler
        facts = f"until={sampler.options.until!r}, per={sampler.per!r}, seed={sampler.seed}"
        starts = sampler.schedule.starts()
        if len(starts) > 1:
            changes = ", ".join(map(str, starts[1:]))
            facts += f", weights change at {changes} (shown are the last ones)"
        return f"mix({{{parts}}}, {facts})"

    @property
    def sampler(self) -> MixtureSampler:
        return self._sampler

    @property
    def parts(self) -> dict[str, Dataset]:
        return dict(self._mixed.parts)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the samples: 16 hex digits of the names and datasets."""
        facts = "".join(f"{n}\0{part.fingerprint}\n" for n, part in self._mixed.parts.items())
        return hashlib.sha256(f"shardwise mix 1\n{facts}".encode()).hexdigest()[:16]

    @property
    def mask_fields(self) -> tuple[str, ...]:
        """The fields of masks that decoders of any of the datasets make beside their own."""
        parts = self._mixed.parts.values()
        return tuple(dict.fromkeys(name for part in parts for name in part.mask_fields))

    @property
    def padding(self) -> Mapping[str, Any]:
        """The padding of fields, where it is the same in all of the datasets."""
        return common_entries([part.padding for part in self._mixed.parts.values()])

    @property
    def whole_fields(self) -> Collection[str]:
        """The fields whose dicts and tuples are values in any of the datasets."""
        parts = self._mixed.parts.values()
        return tuple(dict.fromkeys(name for part in parts for name in part.whole_fields))

    @property
    def is_mapped(self) -> bool:
        return any(part.is_mapped for part in self._mixed.parts.values())

    @cached_property
    def cost(self) -> LoadCost:
        every = [part.cost for part in self._mixed.parts.values()]
        sizes = [cost.row_bytes for cost in every if cost.row_bytes is not None]
        return LoadCost(
            row_bytes=float(np.mean(sizes)) if len(sizes) == len(every) else None,
            decodes_rows=any(cost.decodes_rows for cost in every),
            runs_python=any(cost.runs_python for cost in every),
            one_thread_suffices=all(cost.one_thread_suffices for cost in every),
            random_reads_are_requests=any(cost.random_reads_are_requests for cost in every),
            batch_is_one_request=all(cost.batch_is_one_request for cost in every),
        )

    def __len__(self) -> int:
        return int(self._mixed.ends[-1])

    def url_of(self, index: int) -> str:
        _, part, inner = self._mixed.locate(index)
        return part.url_of(inner)

    def describe(self, index: int) -> str:
        name, part, inner = self._mixed.locate(index)
        return f"sample {index}, of {name!r} {part.describe(inner)}"

    def layout(self) -> dict[str, Layout]:
        """Shape and dtype of the fields that all datasets decode straight into a batch's rows."""
        first, *others = [part.layout() for part in self._mixed.parts.values()]
        # A field that an earlier function or another dataset makes otherwise is not in place.
        return {
            name: form
            for name, form in first.items()
            if all(layout.get(name) == form for layout in others)
        }

    def select(self, *fields: str, order: str | None = None) -> Dataset:
        """Keep these fields of each dataset that has them, one at least; "__source__" stays."""
        self._check("select", fields)

        def selected(part: Dataset) -> Dataset:
            own = [name for name in fields if matching(name, _list_names(part))]
            return part.select(*own, order=order if any("*" in name for name in own) else None)

        return self._each(selected)

    def decode(self, specs: Mapping[str, Any] | None = None, /, **decoders: Any) -> Dataset:
        """Decode fields of each dataset that has them, one at least; see `Dataset.decode`."""
        if not isinstance(specs, Mapping | None) or not (specs or decoders):
            return self._each(lambda part: part.decode(specs))
        decoders = {**(specs or {}), **decoders}
        self._check("decode", tuple(decoders))

        def decoded(part: Dataset) -> Dataset:
            own = {name: fn for name, fn in decoders.items() if matching(name, _list_names(part))}
            return part.decode(own) if own else part

        return self._each(decoded)

    def map(self, fn: Callable[..., dict[str, Any]]) -> Dataset:
        """Transform the samples of all datasets; see `Dataset.map`."""
        parts = self._mixed.parts
        if not self._is_labelled:
            parts = {name: part.map(_Label(name)) for name, part in parts.items()}
        mapped = {name: part.map(fn) for name, part in parts.items()}
        return MixedDataset(mapped, self._sampler, is_labelled=True)

    def _one(self, index: int) -> dict[str, Any]:
        name, part, inner = self._mixed.locate(index)
        return _label_sample(part[inner], name, part)

    def __getitems__(self, indices: ArrayLike) -> list[dict[str, Any]]:
        ids = checked_ids(indices, len(self), from_end=True)
        samples: list[dict[str, Any]] = [{}] * len(ids)
        for number, rows, start in rows_by_part(ids, self._mixed.ends):
            name, part = self._mixed.named_parts[number]
            loaded = part.__getitems__(ids[rows] - start)
            for row, sample in zip(rows.tolist(), loaded, strict=True):
                samples[row] = _label_sample(sample, name, part)
        return samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for name, part in self._mixed.parts.items():
            for sample in part:
                yield _label_sample(sample, name, part)

    def ranges(
        self, ids: NDArray[np.int64], *, epoch: int = 0, seed: int = 0
    ) -> Iterable[PoolRanges] | None:
        return self._mixed.ranges(ids, epoch=epoch, seed=seed)

    def _load(self, request: LoadRequest) -> dict[str, Sequence[Any]]:
        return self._mixed.load(request)

    def _each(self, change: Callable[[Dataset], Dataset]) -> Dataset:
        """The mixture of changed datasets, in the same order: the order knows ids alone."""
        parts = {name: change(part) for name, part in self._mixed.parts.items()}
        return MixedDataset(parts, self._sampler)

    def _check(self, method: str, names: Sequence[str]) -> None:
        known = {name for part in self._mixed.parts.values() for name in _list_names(part)}
        odd = [name for name in names if not matching(name, known) and name != SOURCE]
        if odd and not self.is_mapped:
            raise ValueError(
                f"{method}(): no dataset of the mixture has {', '.join(map(repr, odd))}; they have "
                f"{', '.join(map(repr, sorted(known)))}"
            )


class _Label:
    """Puts the name of a dataset into its samples, for the functions after it."""

    own_names = (SOURCE,)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        below = sample.get(SOURCE)
        return {**sample, SOURCE: self.name if below is None else f"{self.name}/{below}"}

    def __repr__(self) -> str:
        return f"{SOURCE}={self.name!r}"


def _label_sample(sample: dict[str, Any], name: str, part: Dataset) -> dict[str, Any]:
    below = sample.get(SOURCE) if is_mixture(part) else None
    sample[SOURCE] = name if below is None else f"{name}/{below}"
    return sample


def _list_names(part: Dataset) -> tuple[str, ...]:
    return (*part.fields, *part._parts)
