"""Window shuffle: an order that reads shards nearly in sequence and still mixes well.

1. The shards, permuted by epoch, stand behind one another: a line of N samples.
2. The line is cut into K equal sections, which are dealt to K lanes by epoch.
3. Each lane is shuffled in windows whose borders move with lane and epoch.
4. The lanes are read in turn: position p is lane p mod K, offset p div K.

So K shards are read at a time, each a window at a time, and a batch takes its samples from as many
of these as it has room for. The partition gives each rank a run of lanes, and shards change ranks
from epoch to epoch. Set-up and memory are O(shards + lanes) an epoch (I7).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.arguments import as_positions, whole
from shardwise.plan.epoch_cache import EpochCache
from shardwise.plan.permute import MAX_SIZE, Permutation, mix, mix_array, permute_within

__all__ = ["WindowSampler", "WindowShape"]

_BLOCK = 16_384


class WindowShape(NamedTuple):
    """How a window shuffle goes through shards; the sampler's defaults suit single samples.

    Attributes:
        lanes: places that are read at a time.
        window: samples of a lane that are shuffled among each other.
    """

    lanes: int = 1024
    window: int = 128


@dataclass(frozen=True, slots=True)
class _Line:
    """One epoch's tables.

    Attributes:
        ends: int64 `[shards]`, where each shard of the line ends.
        to_id: int64 `[shards]`, what to add to a place in that shard to get the sample id.
        starts: uint64 `[lanes]`, where each lane's section of the line begins.
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


class WindowSampler:
    """Shards in another order each epoch, mixed from many places, shuffled in windows.

    Args:
        shard_sizes: samples a shard, in storage order; empty and uneven ones are fine.
        seed: any whole number.
        window: samples of a lane that are shuffled among each other.
        lanes: places of the line that are read at a time.

    Up to `lanes * window` samples are one lane with one window, a full shuffle: reading them in
    sequence would hold them all in memory, too. `self.lanes` and `self.window` have the effective
    values. A large window reads long runs in sequence; many lanes mix well.
    docs/shuffling.md has the measurements behind the defaults.
    """

    def __init__(
        self,
        shard_sizes: Sequence[int] | NDArray[np.int64],
        *,
        seed: SupportsIndex = 0,
        window: SupportsIndex = 128,
        lanes: SupportsIndex = 1024,
    ) -> None:
        sizes = np.asarray(shard_sizes)
        if sizes.ndim != 1 or (sizes.size and sizes.dtype.kind not in "iu"):
            raise TypeError(
                f"shard_sizes must be a list of whole numbers, not {sizes.dtype} "
                f"of the shape {sizes.shape}"
            )
        self._sizes = sizes.astype(np.int64)
        if sizes.size and int(self._sizes.min()) < 0:
            raise ValueError(f"shard_sizes must not be negative, one is {int(self._sizes.min())}")
        self.num_samples = int(self._sizes.sum())
        if self.num_samples > MAX_SIZE:
            raise ValueError(f"shard_sizes sum up to {self.num_samples}, more than 2**62")
        self.seed = whole("seed", seed)
        self.window = whole("window", window, least=1)
        self.lanes = whole("lanes", lanes, least=1)
        if self.lanes * self.window >= self.num_samples:
            self.lanes, self.window = 1, max(1, self.num_samples)
        self._lines: EpochCache[_Line] = EpochCache()

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions` of `epoch`, int64 `[k]`."""
        places = as_positions(positions, self.num_samples)
        line = self._lines.get(epoch, self._line)
        ids = np.empty(len(places), dtype=np.int64)
        for start in range(0, len(places), _BLOCK):
            block = places[start : start + _BLOCK].view(np.uint64)
            spot = self._shuffled(line, block).view(np.int64)
            # side="right" skips empty shards.
            shard = np.searchsorted(line.ends, spot, side="right")
            ids[start : start + _BLOCK] = spot + line.to_id[shard]
        return ids

    def _shuffled(self, line: _Line, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """From positions to places of the line, each uint64 `[k]`."""
        lanes, window = np.uint64(self.lanes), np.uint64(self.window)
        offset = positions // lanes
        lane = (positions - offset * lanes).view(np.int64)
        shift = line.shifts[lane]
        # Windows begin at -shift, window - shift, ...; the first and the last are cut to the lane.
        low = (offset + shift) // window * window
        size = np.minimum(low + window - shift, line.sizes[lane])
        low = np.maximum(low, shift) - shift
        size -= low
        start = line.starts[lane] + low
        # Where a window begins in the line tells it from all others of the epoch.
        within = permute_within(offset - low, size, mix_array(line.key, start))
        within += start
        return within

    def _line(self, epoch: int) -> _Line:
        count, lanes = self.num_samples, self.lanes
        key = mix(self.seed, epoch)
        order = Permutation(len(self._sizes), mix(key, 1))(np.arange(len(self._sizes)))
        first_ids = np.cumsum(self._sizes) - self._sizes
        ends = np.cumsum(self._sizes[order])
        to_id = first_ids[order] - (ends - self._sizes[order])

        lane = np.arange(lanes)
        sizes = count // lanes + (lane < count % lanes)
        dealt = Permutation(lanes, mix(key, 2))(lane)
        starts = np.empty(lanes, dtype=np.int64)
        starts[dealt] = np.cumsum(sizes[dealt]) - sizes[dealt]
        shifts = mix_array(mix(key, 3), lane) % np.uint64(self.window)
        # A lane that is no longer than a window is not cut in two.
        shifts[sizes <= self.window] = 0
        return _Line(
            ends, to_id, starts.view(np.uint64), sizes.view(np.uint64), shifts, mix(key, 4)
        )

    def spec(self) -> dict[str, Any]:
        """What the order depends on, as JSON: the shards' sizes are named by a digest."""
        digest = hashlib.sha256(self._sizes.astype("<i8").tobytes()).hexdigest()[:16]
        return {
            "sampler": "window",
            "shard_sizes": digest,
            "seed": self.seed,
            "window": self.window,
            "lanes": self.lanes,
        }

    def __repr__(self) -> str:
        return (
            f"WindowSampler(<{len(self._sizes)} shards, {self.num_samples} samples>, "
            f"seed={self.seed}, window={self.window}, lanes={self.lanes})"
        )
