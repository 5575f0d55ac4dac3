"""Window shuffle: an order that reads shards nearly in sequence and still mixes well.

1. The shards, permuted by epoch, stand one after the other: a line of N samples.
2. The line is cut into K equal sections, which are dealt to K lanes by epoch.
3. Each lane is shuffled in windows whose borders move with lane and epoch.
4. The lanes are read in turn: position p is lane p mod K, offset p div K.

So K shards are read at a time, each a window at a time, and a batch takes its samples from as many
shards as it has room for. The partition gives each rank a run of lanes, and shards change ranks
from epoch to epoch. Set-up and memory are O(shards + lanes) an epoch (I7).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import suggest_names
from shardwise.plan.arguments import digest_of_array, whole
from shardwise.plan.permute import (
    MAX_SIZE,
    LastValues,
    Permutation,
    Words,
    as_positions,
    mix,
    mix_array,
    permute_within,
)

_BLOCK = 16_384


# 16 shards a lane: a shard lies in 1.06 lanes on the mean, so that few ranks read it. Windows of a
# sixteenth of the samples: what is held of them stays a small part of the data.
_SHARDS_A_LANE, _WINDOWS_A_LANE = 16, 16
# 16 lanes a rank at 1,024 ranks.
_MIN_LANES, _MAX_LANES = 1024, 16_384


class WindowShape(NamedTuple):
    """The path of a window shuffle through shards, for a source that knows better than the default.

    Attributes:
        lanes: places that are read at a time.
        window: samples of a lane that are shuffled among each other.
    """

    lanes: int = _MIN_LANES
    window: int = 128


def default_lanes(num_shards: int, num_samples: int, *, window: int = 128) -> int:
    """Lanes that suit the data: 1,024, and more of them for many shards, up to 16,384.

    A power of two, so that a number of ranks that is one shares no lane. A rank of 1,024 then has
    samples of 16 shards in a batch where there are 262,144 shards or more. The windows that are
    open hold `lanes * window` samples over all ranks: a sixteenth of the data at most where there
    are more than 1,024 lanes, and 2,097,152 samples at most.

    >>> default_lanes(10_000, 10**8), default_lanes(10**6, 10**10)
    (1024, 16384)
    """
    most = min(num_shards // _SHARDS_A_LANE, num_samples // (_WINDOWS_A_LANE * window), _MAX_LANES)
    lanes = _MIN_LANES
    while lanes * 2 <= most:
        lanes *= 2
    return lanes


class SizesView(Protocol):
    """The sizes of shards as they stand in other data, which travels by itself."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.int64]:
        """int64 `[shards]`."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One epoch's tables.

    Attributes:
        ends: int64 `[shards]`, where each shard of the line ends.
        to_id: int64 `[shards]`, what to add to an offset in that shard to get the sample id.
        starts: uint64 `[lanes]`, where each lane's section of the line starts.
        sizes: uint64 `[lanes]`, how long it is.
        shifts: uint64 `[lanes]`, how far the lane's windows are moved, in [0, window).
        key: the key of the windows.
    """

    ends: NDArray[np.int64]
    to_id: NDArray[np.int64]
    starts: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    shifts: NDArray[np.uint64]
    key: int


@suggest_names
class WindowSampler:
    """Shards in another order each epoch, mixed from many places, shuffled in windows.

    Args:
        shard_sizes: samples a shard, in storage order; empty and uneven ones are fine. Or a view
            of them in other data, an object with `__array__`, which is pickled instead.
        seed: any whole number.
        window: samples of a lane that are shuffled among each other.
        lanes: places of the line that are read at a time; None for `default_lanes`.

    Up to `lanes * window` samples are one lane with one window, a full shuffle. `self.lanes` and
    `self.window` have the effective values. A large window reads long runs in sequence; many lanes
    mix well: docs/shuffling.md has the measurements.
    """

    def __init__(
        self,
        shard_sizes: Sequence[int] | NDArray[np.int64] | SizesView,
        *,
        seed: SupportsIndex = 0,
        window: SupportsIndex = 128,
        lanes: SupportsIndex | None = None,
    ) -> None:
        sizes = np.asarray(shard_sizes)
        if sizes.ndim != 1 or (sizes.size and sizes.dtype.kind not in "iu"):
            raise TypeError(
                f"shard_sizes must be a list of whole numbers, not {sizes.dtype} "
                f"of the shape {sizes.shape}"
            )
        # A view of other data is pickled in place of a million sizes.
        self._view = None if isinstance(shard_sizes, Sequence | np.ndarray) else shard_sizes
        self._sizes = sizes.astype(np.int64)
        if sizes.size and int(self._sizes.min()) < 0:
            raise ValueError(f"shard_sizes must not be negative, one is {int(self._sizes.min())}")
        self.num_samples = int(self._sizes.sum())
        if self.num_samples > MAX_SIZE:
            raise ValueError(f"shard_sizes sum up to {self.num_samples}, more than 2**62")
        self.seed = whole("seed", seed)
        self.window = whole("window", window, least=1)
        if lanes is None:
            num_shards = int(np.count_nonzero(self._sizes))
            lanes = default_lanes(num_shards, self.num_samples, window=self.window)
        self.lanes = whole("lanes", lanes, least=1)
        if self.lanes * self.window >= self.num_samples:
            self.lanes, self.window = 1, max(1, self.num_samples)
        self._lines: LastValues[int, _Line] = LastValues()

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions` of `epoch`, int64 `[k]`."""
        places = as_positions(positions, self.num_samples)
        line = self._lines.get(epoch, self._line)
        ids = np.empty(len(places), dtype=np.int64)
        for start in range(0, len(places), _BLOCK):
            block = places[start : start + _BLOCK].view(np.uint64)
            spot = self._shuffle_positions(line, block).view(np.int64)
            # side="right" skips empty shards.
            shard = np.searchsorted(line.ends, spot, side="right")
            ids[start : start + _BLOCK] = spot + line.to_id[shard]
        return ids

    def _shuffle_positions(self, line: _Line, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Map positions to offsets in the line, both uint64 `[k]`."""
        lanes = np.uint64(self.lanes)
        offset = positions // lanes
        lane = (positions - offset * lanes).view(np.int64)
        within = self._within(line, lane, offset)
        within += line.starts[lane]
        return within

    def _within(
        self, line: _Line, lane: NDArray[np.int64], offset: Words, *, undo: bool = False
    ) -> Words:
        """Permute offsets in lanes within their windows, or undo that: uint64 `[k]`."""
        window, shift = np.uint64(self.window), line.shifts[lane]
        # Windows start at -shift, window - shift, ...; the first and the last are cut to the lane.
        low = (offset + shift) // window * window
        size = np.minimum(low + window - shift, line.sizes[lane])
        low = np.maximum(low, shift) - shift
        size -= low
        # The start of a window in the line identifies it within the epoch.
        key = mix_array(line.key, line.starts[lane] + low)
        within = permute_within(offset - low, size, key, undo=undo)
        within += low
        return within

    def positions_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of some ids in an epoch, int64 `[k]`: O(shards + lanes) for any of them."""
        wanted = as_positions(ids, self.num_samples)
        line = self._lines.get(epoch, self._line)
        shard = np.searchsorted(np.cumsum(self._sizes), wanted, side="right")
        spot = wanted - line.to_id[np.argsort(self._order(epoch))[shard]]
        starts = line.starts.view(np.int64)
        by_start = np.argsort(starts)
        lane = by_start[np.searchsorted(starts[by_start], spot, side="right") - 1]
        offset = (spot - starts[lane]).view(np.uint64)
        return self._within(line, lane, offset, undo=True).view(np.int64) * self.lanes + lane

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The shards in the order of an epoch's line, int64 `[shards]`."""
        count = len(self._sizes)
        return Permutation(count, mix(mix(self.seed, epoch), 1))(np.arange(count))

    def _line(self, epoch: int) -> _Line:
        count, lanes = self.num_samples, self.lanes
        key, order = mix(self.seed, epoch), self._order(epoch)
        first_ids = np.cumsum(self._sizes) - self._sizes
        ends = np.cumsum(self._sizes[order])
        to_id = first_ids[order] - (ends - self._sizes[order])

        lane = np.arange(lanes)
        sizes = count // lanes + (lane < count % lanes)
        dealt = Permutation(lanes, mix(key, 2))(lane)
        starts = np.empty(lanes, dtype=np.int64)
        starts[dealt] = np.cumsum(sizes[dealt]) - sizes[dealt]
        shifts = mix_array(mix(key, 3), lane) % np.uint64(self.window)
        # A lane that is not longer than a window is not cut in two.
        shifts[sizes <= self.window] = 0
        return _Line(
            ends, to_id, starts.view(np.uint64), sizes.view(np.uint64), shifts, mix(key, 4)
        )

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]]:  # noqa: ARG002
        """The ids of an epoch as ranges, in any order: each sample once."""
        return [range(self.num_samples)]

    def __getstate__(self) -> dict[str, Any]:
        """Without the sizes, where a view has them."""
        state = dict(self.__dict__)
        if self._view is not None:
            state["_digest"] = self._digest
            state.pop("_sizes", None)  # a copy that nobody has read has none
        return state

    def __getattr__(self, name: str) -> Any:
        # After unpickling, the first read takes the sizes from the view.
        if name != "_sizes" or self.__dict__.get("_view") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        sizes = np.asarray(self._view).astype(np.int64)
        if digest_of_array(sizes, "<i8") != self._digest:
            raise ValueError("the sizes of the shards are others than when the order was made")
        self._sizes = sizes
        return sizes

    def spec(self) -> dict[str, Any]:
        """Everything that the order depends on, as JSON; a digest stands for the shards' sizes."""
        return {
            "sampler": "window",
            "shard_sizes": self._digest,
            "seed": self.seed,
            "window": self.window,
            "lanes": self.lanes,
        }

    @functools.cached_property
    def _digest(self) -> str:
        """The digest of the shards' sizes; a million take 68 ms, and each state needs it."""
        return digest_of_array(self._sizes, "<i8")

    def __repr__(self) -> str:
        return (
            f"WindowSampler(<{len(self._sizes)} shards, {self.num_samples} samples>, "
            f"seed={self.seed}, window={self.window}, lanes={self.lanes})"
        )
