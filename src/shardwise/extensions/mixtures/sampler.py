"""The order of a mixture: datasets drawn by weights, each in separate epochs.

Position p of epoch e is draw `e * num_samples + p` since the start: the epochs of a mixture
are lengths only, and each continues where the last one ended. The n-th draw of a dataset is sample
`n mod size` of its own epoch `n div size`, so all of its samples come once before one comes again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.mixtures.options import MAX_DRAW, MixtureOptions, MixturePart, key_of
from shardwise.extensions.mixtures.schedule import MixtureSchedule
from shardwise.plan.arguments import digest_of, whole
from shardwise.plan.permute import as_positions, mix, mix_array, permute_within
from shardwise.plan.protocol import Sampler, for_global_batch, ids_of_epochs, sources_of

Ints = NDArray[np.int64]

# A state stays under 1 KB: digests stand for longer descriptions of the past.
_MAX_SPEC = 500


class MixtureSampler:
    """Samples of several datasets in the ratio of their weights, each from all of them.

    Args:
        parts: the datasets by name; their ids follow one another in this order.
        options: weights, length and seed.

    Attributes:
        schedule: which dataset each draw is of.

    Of any whole blocks each dataset has its weight's share, up to 2.4 samples, and each rank sees
    the same shares. 0.15 to 0.4 µs a position in blocks of 4,096.
    """

    per = "sample"
    # Samples a draw.
    _unit = 1

    def __init__(self, parts: Mapping[str, MixturePart], options: MixtureOptions) -> None:
        self.parts = dict(parts)
        self.options = options
        self.seed = options.seed
        names = self.names = tuple(self.parts)
        self.schedule = MixtureSchedule(
            names, options.changes, seed=options.seed, unit=self._unit, block=self._block
        )
        sizes = [part.num_ids for part in self.parts.values()]
        self._starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._sizes = np.array([part.epoch_size for part in self.parts.values()], dtype=np.int64)
        # The keys follow from names, so that a dataset's order is the same whatever is beside it.
        keys = [mix(options.seed, 2, key_of(name)) for name in names]
        self._keys = np.array(keys, dtype=np.uint64)
        has_own = [part.sampler is not None for part in self.parts.values()]
        self._has_own: NDArray[np.bool_] = np.array(has_own)
        self.num_samples = self._length()

    @property
    def _block(self) -> int:
        return self.options.block

    def indices(self, epoch: int, positions: Ints) -> Ints:
        places = as_positions(positions, self.num_samples)
        which, numbers = self._split(places + self._since_begin(epoch))
        own_epochs, own_places = np.divmod(numbers, self._sizes[which])
        if not self._has_own.any():
            return self._permute_places(which, own_epochs, own_places) + self._starts[which]
        has_own = self._has_own[which]
        ids, rest = np.empty_like(places), np.flatnonzero(~has_own)
        ids[rest] = self._permute_places(which[rest], own_epochs[rest], own_places[rest])
        for number in np.unique(which[has_own]).tolist():
            here = np.flatnonzero(which == number)
            sampler = cast("Sampler", self.parts[self.names[number]].sampler)
            ids[here] = ids_of_epochs(sampler, own_epochs[here], own_places[here])
        return ids + self._starts[which]

    def _permute_places(self, which: Ints, epochs: Ints, places: Ints) -> Ints:
        """The ids of datasets that are permuted as a whole: any of them and any epochs at once."""
        keys = mix_array(self.seed, self._keys[which] ^ epochs.view(np.uint64))
        sizes = self._sizes[which].view(np.uint64)
        return permute_within(places.view(np.uint64), sizes, keys).view(np.int64)

    def _split(self, positions: Ints) -> tuple[Ints, Ints]:
        """The dataset of each position since the start, and how many of its samples come before."""
        return self.schedule.split(positions)

    def _since_begin(self, epoch: int) -> int:
        """The position, since the start, of an epoch's position 0."""
        begin = whole("epoch", epoch, least=0) * self.num_samples
        if begin + self.num_samples > MAX_DRAW:
            raise ValueError(
                f"epoch={epoch} of {self.num_samples} samples of a mixture is beyond position 2**62"
            )
        return begin

    def counts(self, epoch: int, position: int) -> dict[str, int]:
        """Count the samples of each dataset before a position of an epoch, since the start.

        O(datasets), for any position.
        """
        counts = self._counts(epoch * self.num_samples + position)
        return dict(zip(self.names, counts, strict=True))

    def _counts(self, position: int) -> list[int]:
        draw, rest = divmod(position, self._unit)
        counts = [count * self._unit for count in self.schedule.counts(draw)]
        if rest:
            which, _ = self.schedule.split(np.array([draw], dtype=np.int64))
            counts[int(which[0])] += rest
        return counts

    def sources(self, epoch: int, position: int) -> dict[str, dict[str, float]]:
        """Samples and epochs of each dataset up to a position of an epoch, since the start.

        Those of a mixture within it follow it, as "outer/inner".
        """
        found: dict[str, dict[str, float]] = {}
        for name, count in self.counts(epoch, position).items():
            part = self.parts[name]
            found[name] = {"samples": count, "epochs": count / part.epoch_size}
            inner = sources_of(part.sampler, *divmod(count, part.epoch_size)) or {}
            found |= {f"{name}/{below}": facts for below, facts in inner.items()}
        return found

    def _length(self) -> int:
        """Positions in an epoch, by `until`."""
        until = self.options.until
        if isinstance(until, Mapping):
            [(name, num_epochs)] = until.items()
            number = self.names.index(name)
            length = self._samples_until(number, num_epochs * int(self._sizes[number]))
            if length is None:
                raise ValueError(
                    f"until={dict(until)}: by its weights {name!r} never comes that often"
                )
            return length
        if not isinstance(until, str):
            return -(-until // self._unit) * self._unit
        drawn = [k for k, is_drawn in enumerate(self.schedule.is_drawn()) if is_drawn]
        ends = {k: self._samples_until(k, int(self._sizes[k])) for k in drawn}
        whole_ones = [end for end in ends.values() if end is not None]
        if until == "first" and whole_ones:
            return min(whole_ones)
        never = [self.names[k] for k, end in ends.items() if end is None]
        if never:
            raise ValueError(
                f"until={until!r}: by their weights {', '.join(map(repr, never))} never come once "
                "as a whole; give until= as a number of samples"
            )
        return max(whole_ones)

    def _samples_until(self, number: int, num_samples: int) -> int | None:
        """Positions until a dataset's first samples have all come."""
        draws = self.schedule.draws_until(number, -(-num_samples // self._unit))
        return None if draws is None else draws * self._unit

    def spec(self) -> dict[str, Any]:
        return {**self.past(MAX_DRAW), "num_samples": self.num_samples}

    def past(self, position: int) -> dict[str, Any]:
        """Everything that the ids before this position (since the start) depend on, as JSON.

        This includes the data, but not later changes of weights, nor datasets that come with them.
        """
        segments = [s for s in self.schedule.segments if s.start * self._unit < position]
        sorted_names = sorted(self.names)
        counts = dict(zip(self.names, self._counts(position), strict=True))
        changes = {
            f"from {segment.start * self._unit}": segment.spec(sorted_names) for segment in segments
        }
        datasets = {name: self.parts[name].past(n) for name, n in counts.items() if n}
        past: dict[str, Any] = {"sampler": "mixture", "per": self.per, "seed": self.seed}
        past |= self._size_spec()
        if len(json.dumps([changes, datasets])) > _MAX_SPEC:
            changes = {start: digest_of(change) for start, change in changes.items()}  # type: ignore[misc]
        if len(json.dumps([changes, datasets])) > _MAX_SPEC:
            past["names"] = sorted(datasets)[:4]
            return {**past, "datasets": digest_of(datasets), "weights": digest_of(changes)}
        return {**past, "datasets": datasets, "weights": changes}

    def _size_spec(self) -> dict[str, int]:
        return {"block": self.options.block}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(self.names)}, epochs of {self.num_samples} samples, "
            f"seed={self.seed})"
        )


class BatchMixtureSampler(MixtureSampler):
    """Global batches of one dataset each, in the ratio of the weights.

    `batch_size` are the samples of all ranks in a step; a plan asks for its own by
    `for_global_batch`. The other arguments are those of `MixtureSampler`; `options.block` means
    nothing here.

    An epoch is a whole number of batches. Of any n batches each dataset has its weight's share, up
    to 2.4.
    """

    per = "batch"

    def __init__(
        self, parts: Mapping[str, MixturePart], options: MixtureOptions, *, batch_size: int = 1
    ) -> None:
        self._unit = whole("batch_size", batch_size, least=1)
        super().__init__(parts, options)

    @property
    def _block(self) -> int:
        # All ranks read the same dataset at a step: no rank could have a biased share.
        return 1

    def for_global_batch(self, size: int) -> BatchMixtureSampler:
        if size == self._unit:
            return self
        parts = {
            name: part
            if part.sampler is None
            else replace(part, sampler=for_global_batch(part.sampler, size))
            for name, part in self.parts.items()
        }
        return BatchMixtureSampler(parts, self.options, batch_size=size)

    def _split(self, positions: Ints) -> tuple[Ints, Ints]:
        batches = positions // self._unit
        which, numbers = self.schedule.split(batches)
        return which, (numbers - batches) * self._unit + positions

    def _size_spec(self) -> dict[str, int]:
        return {"global_batch_size": self._unit}
