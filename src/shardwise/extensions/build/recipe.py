"""The samples made of inputs: a pure function of (input, recipe, number of the shard)."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import tee
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, ShardwiseError, message_of
from shardwise.codecs.protocol import takes_rng
from shardwise.dataset.code_digest import held_digest
from shardwise.dataset.keyed_random import seeded_generator
from shardwise.dataset.raw_rows import name_of
from shardwise.extensions.build.conversion import tar_key
from shardwise.extensions.build.fetch import Fetch, FetchError
from shardwise.extensions.build.inputs import Input
from shardwise.plan import FullSampler, SequentialSampler, WindowSampler
from shardwise.plan.permute import mix
from shardwise.sources.tar.write.stored import StoredRun

# Runs of inputs that lie together in an order by windows.
_WINDOW, _MAX_LANES = 128, 64
_LIBRARY = str(Path(__file__).parents[1])
# An input's number; what it is; what is made of it so far, or its error; the function that did it.
_Step = tuple[int, Any, Any, Callable[..., Any] | None]


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that is in no shard, because of an error."""

    key: str
    url: str
    index: int
    kind: str
    reason: str
    where: str


@dataclass(slots=True)
class Outcome:
    """Counts and failures of the inputs of one shard."""

    num_in: int = 0
    num_out: int = 0
    num_filtered: int = 0
    num_bytes: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Recipe:
    """A recipe for the shards of an input; pickles for worker processes.

    `filter` is called before `map`, which gives None or several samples; with `records`, errors
    of inputs are recorded, not raised.
    """

    source: Input
    map: Callable[..., Any] | None
    filter: Callable[[Any], Any] | None
    samples_per_shard: int
    order: Literal["window", "full"] | None
    seed: int
    suffix: str
    records: bool
    media: bool = False

    @property
    def num_shards(self) -> int:
        """Shards, empty ones included."""
        return -(-len(self.source) // self.samples_per_shard)

    def functions(self) -> str:
        """A digest of the functions: 16 hex digits."""
        return held_digest((self.map, self.filter))

    def digest(self) -> str:
        """A digest of all that a shard depends on but the input: 16 hex digits."""
        layout = f"{self.samples_per_shard} {self.order} {self.seed} {self.suffix}"
        layout += " media" if self.media else ""
        return hashlib.sha256(f"{layout}\n{self.functions()}".encode()).hexdigest()[:16]

    def ids(self, number: int) -> NDArray[np.int64]:
        """The inputs of a shard: positions [number * S, (number + 1) * S) of the order."""
        start = number * self.samples_per_shard
        stop = min(start + self.samples_per_shard, len(self.source))
        positions = np.arange(start, stop, dtype=np.int64)
        ids: NDArray[np.int64] = self._sampler.indices(0, positions)
        return ids

    @cached_property
    def _sampler(self) -> Any:
        num_samples = len(self.source)
        if self.order is None:
            return SequentialSampler(num_samples)
        if self.order == "full":
            return FullSampler(num_samples, seed=self.seed)
        # A shard is then made of runs of 128 neighbours: few requests, from many places.
        lanes = min(_MAX_LANES, max(1, self.samples_per_shard // _WINDOW))
        return WindowSampler(self.source.sizes(), seed=self.seed, window=_WINDOW, lanes=lanes)

    def stored(
        self, ids: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], StoredRun | None]]:
        """The inputs in order, in parts: with a run that may be copied as it is, or with None."""
        runs = None
        # Media are looked into, so their samples are read one by one.
        is_touched = self.media or self.map is not None or self.filter is not None
        if self.suffix == ".tar" and not is_touched:
            runs = self.source.stored(ids)
        if runs is None:
            yield ids, None
            return
        for run in runs:
            yield np.arange(run.start, run.stop, dtype=np.int64), run if run.keys else None

    def samples(
        self, ids: NDArray[np.int64], outcome: Outcome
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """The samples that are made of each input, with its number; counts what is not."""
        for number, value, result, function in self._map_inputs(self._filter_inputs(ids, outcome)):
            is_damaged = function is None and isinstance(result, Exception)
            key = None if is_damaged else _key_of(number, value)
            if isinstance(result, Exception):
                self.fail(number, key, result, outcome, function)
            elif result is None or (isinstance(result, list) and not result):
                outcome.num_filtered += 1
            else:
                try:
                    made = self._check_samples(number, value, result)
                except TypeError as error:
                    self.fail(number, key, error, outcome, function)
                else:
                    yield number, made

    def _filter_inputs(self, ids: NDArray[np.int64], outcome: Outcome) -> Iterator[_Step]:
        for number, value in self.source.read(ids):
            outcome.num_in += 1
            if isinstance(value, DataError):
                yield number, None, value, None
                continue
            keeps = True if self.filter is None else _call_function(self.filter, value)
            if isinstance(keeps, Exception):
                yield number, value, keeps, self.filter
            elif keeps:
                yield number, value, value, None
            else:
                outcome.num_filtered += 1

    def _map_inputs(self, kept: Iterator[_Step]) -> Iterator[_Step]:
        """Apply `map` to the inputs, in their order; errors stay."""
        if self.map is None:
            yield from kept
        elif isinstance(self.map, Fetch):
            # It has several inputs under way at once, and reads ahead in one of two equal streams.
            steps, ahead = tee(kept)
            inputs = (value for _, value, result, _ in ahead if not isinstance(result, Exception))
            with closing(self.map.map_many(inputs)) as results:
                for number, value, result, function in steps:
                    if not isinstance(result, Exception):
                        result, function = next(results), self.map
                    yield number, value, result, function
        else:
            is_random = takes_rng(self.map)
            for step in kept:
                number, value, result, _ = step
                if isinstance(result, Exception):
                    yield step
                else:
                    options = {}
                    if is_random:
                        options["rng"] = seeded_generator(number, mix(self.seed, 0, 0))
                    yield number, value, _call_function(self.map, value, **options), self.map

    def _check_samples(self, number: int, value: Any, result: Any) -> list[dict[str, Any]]:
        key = _key_of(number, value)
        results = result if isinstance(result, list) else [result]
        samples = []
        for place, sample in enumerate(results):
            if not isinstance(sample, Mapping):
                what = "the item" if self.map is None else f"{name_of(self.map)} returned what"
                raise TypeError(
                    f"{what} is a {type(sample).__name__}, no sample: a dict of fields, None to "
                    "leave it out, or a list of dicts"
                )
            # Several samples of one input need a key each.
            own = key if result is not results else f"{key}-{place:03d}"
            made = {"__key__": own, **sample}
            # Keys of other formats, "a.jsonl:7"; a key that a user chose is written as it is.
            if self.suffix == ".tar" and made["__key__"] == own and self.source.has_own_keys:
                made["__key__"] = tar_key(own)
            samples.append(made)
        return samples

    def fail(
        self,
        number: int,
        key: str | None,
        error: Exception,
        outcome: Outcome,
        function: Callable[..., Any] | None = None,
    ) -> None:
        """Record an input that failed, or raise it as an error that names it."""
        url = self.source.url_of(number)
        if isinstance(error, DataError):
            key, reason = error.key or key, error.reason
        else:
            reason = f"{type(error).__name__}: {message_of(error)}"
        frames = _frames(error)
        if not self.records:
            if isinstance(error, DataError) and function is None:
                raise error
            name = "" if function is None else f"{name_of(function)} raised "
            path = f"; called from {', '.join(frames)}" if frames else ""
            raise DataError(f"build: {name}{reason}{path}", url=url, key=key, index=number) from (
                error
            )
        outcome.failures.append(
            Failure(
                index=number,
                key=str(number) if key is None else key,
                url=url or "",
                kind=error.word if isinstance(error, FetchError) else type(error).__name__,
                reason=reason,
                where=frames[-1] if frames else "",
            )
        )


def _call_function(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a user's function: its result, or the error that it raises.

    Raises:
        ShardwiseError: one that is not about this input, such as a store's.
    """
    try:
        return function(*args, **options)
    except Exception as error:
        if isinstance(error, ShardwiseError) and not isinstance(error, DataError):
            raise
        return error


def _key_of(number: int, value: Any) -> str:
    key = value.get("__key__") if isinstance(value, Mapping) else None
    return key if isinstance(key, str) else f"{number:08d}"


def _frames(error: BaseException) -> list[str]:
    """The lines of the user's code that led to an error, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    return [
        f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in frames
        if not frame.filename.startswith(_LIBRARY)
    ]
