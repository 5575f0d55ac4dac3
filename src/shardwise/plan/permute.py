"""Keyed bijections of [0, n), the full shuffle, which is one, and the mixers that make their keys.

A position becomes a cell of a grid of a x b cells, a * b >= n, a and b near sqrt(n). Each
round adds to one coordinate, modulo its side, a hash of the other: a Feistel network over a grid
in place of bits (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002), so each
round can be undone and the whole is a bijection of the grid for any sides. The grid has less than
one row of cells too many; a position that lands there goes through the rounds again until it is in
[0, n) (cycle walking), which leaves a bijection of [0, n). Up to 4,096 values a sorted table is
cheaper and better.

The order is for ever: a change here changes the order of every training run that resumes.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Hashable
from typing import Any, Generic, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.arguments import suggest_names
from shardwise.plan.arguments import whole

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Words = NDArray[np.uint64]
# A side, a size or a key: one for all positions, or one a position.
Each = np.uint64 | Words

# Both coordinates, and the upper half of a hash, must fit in 32 bits to be multiplied in 64.
MAX_SIZE = 2**62
# Six rounds: four already pass the tests of tests/plan/test_permute.py; two more cost 8 ns.
_NUM_ROUNDS = 6
# Work arrays of 128 KiB stay in the second-level cache: half the time of blocks of 64k.
_BLOCK = 16_384
# Up to here a table of all values (32 KiB, 0.3 ms) is made on the first call.
_MAX_TABLE = 4_096

_MASK = 2**64 - 1
_HALF = np.uint64(32)
# Odd constants with about half of their bits set, without a pattern.
_STEP = 0xD1B54A32D192ED03
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xBF58476D1CE4E5B9)
_THIRD = np.uint64(0x94D049BB133111EB)


def mix(*words: SupportsIndex) -> int:
    """Mix whole numbers of any size and sign into one key in [0, 2**64).

    Different words give unrelated keys: `mix(5, 1)`, `mix(6, 0)` and `mix(51)` have nothing in
    common. (SHA-256 of the decimal digits.)
    """
    text = ",".join(str(operator.index(word)) for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def mix_array(key: int, values: NDArray[np.int64] | Words) -> Words:
    """Hash each value under a key: uint64 `[...]` of the shape of `values`, a bijection of 64 bits.

    About 4 ns a value. Take the upper bits where fewer are needed.
    """
    word = np.uint64(key & _MASK)
    mixed: Words = np.asarray(values).astype(np.uint64)  # a copy; negative values wrap
    mixed ^= word
    mixed *= _FIRST
    mixed ^= mixed >> _HALF
    mixed += word
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(29)
    mixed *= _THIRD
    mixed ^= mixed >> _HALF
    return mixed


class Permutation:
    """A keyed bijection of [0, n): position to value, without an array of n.

    Args:
        n: how many; 0 to 2**62.
        key: any whole number; different keys give unrelated orders.

    25 ns a position in large blocks, for any n. Pure, and safe in threads.

    >>> Permutation(5, key=1)(np.arange(5))
    array([2, 1, 0, 3, 4])
    """

    def __init__(self, n: SupportsIndex, key: SupportsIndex) -> None:
        self.n = whole("n", n, least=0)
        if self.n > MAX_SIZE:
            raise ValueError(f"n={self.n} is more than 2**62")
        self.key = operator.index(key)
        self._mixed = np.uint64(mix(self.key))
        self._rows, self._columns = _grid(self.n)
        self._table: NDArray[np.int64] | None = None

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The values at `positions`: int64 `[k]` in [0, n)."""
        places = as_positions(positions, self.n)
        return self._compute(places) if self.n > _MAX_TABLE else self._values()[places]

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of some values: int64 `[k]`, at the same cost as the values."""
        wanted = as_positions(values, self.n)
        if self.n > _MAX_TABLE:
            return self._compute(wanted, undo=True)
        return np.argsort(self._values(), kind="stable")[wanted]

    def _values(self) -> NDArray[np.int64]:
        if self._table is None:
            # Sorting by a hash without ties gives each order with the same chance; the rounds on a
            # grid of odd sides would give the even permutations only.
            hashed = mix_array(int(self._mixed), np.arange(self.n))
            self._table = np.argsort(hashed, kind="stable").astype(np.int64)
        return self._table

    def _compute(self, places: NDArray[np.int64], *, undo: bool = False) -> NDArray[np.int64]:
        values = np.empty(len(places), dtype=np.uint64)
        size = np.uint64(self.n)
        for start in range(0, len(places), _BLOCK):
            block = places[start : start + _BLOCK].view(np.uint64)
            values[start : start + _BLOCK] = _walk(
                block, size, self._rows, self._columns, self._mixed, undo=undo
            )
        return values.view(np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the table."""
        return Permutation, (self.n, self.key)

    def __repr__(self) -> str:
        return f"Permutation(n={self.n}, key={self.key})"


class LastValues(Generic[K, T]):
    """The values of the keys that were used last.

    Args:
        size: how many are kept. Two for epochs: a virtual one may reach into a second.

    Safe in threads: at worst two of them make the same value. Pickles empty.
    """

    __slots__ = ("_entries", "_size")

    def __init__(self, size: int = 2) -> None:
        self._size = size
        # The newest first.
        self._entries: tuple[tuple[K, T], ...] = ()

    def get(self, key: K, make: Callable[[K], T]) -> T:
        """Return `make(key)`, from the cache where it is there."""
        entries = self._entries
        if entries and entries[0][0] == key:
            return entries[0][1]
        found = [entry for entry in entries if entry[0] == key]
        newest = found[0] if found else (key, make(key))
        others = [entry for entry in entries if entry[0] != key]
        # One assignment: a thread that reads while another writes sees one or the other.
        self._entries = (newest, *others[: self._size - 1])
        return newest[1]

    def __reduce__(self) -> tuple[type[LastValues[Any, Any]], tuple[int]]:
        return LastValues, (self._size,)


@suggest_names
class FullSampler:
    """A permutation of all samples, another for each epoch and seed; computed, not stored.

    Args:
        num_samples: how many there are.
        seed: any whole number.
    """

    def __init__(self, num_samples: SupportsIndex, *, seed: SupportsIndex = 0) -> None:
        self.num_samples = whole("num_samples", num_samples, least=0)
        self.seed = whole("seed", seed)
        self._permutations: LastValues[int, Permutation] = LastValues()

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions` of `epoch`, int64 `[k]`; about 25 ns each."""
        return self._permutation(epoch)(positions)

    def positions_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of some ids in an epoch, int64 `[k]`; about 25 ns each."""
        return self._permutation(epoch).inverse(ids)

    def _permutation(self, epoch: int) -> Permutation:
        return self._permutations.get(
            epoch, lambda e: Permutation(self.num_samples, mix(self.seed, e))
        )

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]]:  # noqa: ARG002
        """The ids of an epoch as ranges, in any order: each sample once."""
        return [range(self.num_samples)]

    def spec(self) -> dict[str, Any]:
        """Everything that the order depends on, as JSON."""
        return {"sampler": "full", "num_samples": self.num_samples, "seed": self.seed}

    def __repr__(self) -> str:
        return f"FullSampler({self.num_samples}, seed={self.seed})"


def permute_within(places: Words, sizes: Words, keys: Words, *, undo: bool = False) -> Words:
    """Permute many small ranges at once: uint64 `[k]`, value i in [0, sizes[i]).

    Args:
        places: uint64 `[k]`, each in [0, sizes[i]).
        sizes: uint64 `[k]`, the size of the range that each place is in.
        keys: uint64 `[k]`, the key of that range, well mixed.
        undo: map values back to places.

    For equal size and key this is one bijection of [0, size).
    """
    rows = np.ceil(np.sqrt(sizes.astype(np.float64))).astype(np.uint64)
    columns = (sizes + rows - np.uint64(1)) // rows
    return _walk(places, sizes, rows, columns, keys, undo=undo)


def _grid(n: int) -> tuple[np.uint64, np.uint64]:
    """Sides of a grid of n cells or a few more."""
    rows = math.isqrt(max(n, 1) - 1) + 1
    return np.uint64(rows), np.uint64(max(1, -(-n // rows)))


def _walk(places: Words, size: Each, rows: Each, columns: Each, key: Each, *, undo: bool) -> Words:
    """Run the rounds, or undo them, until each value is in [0, size)."""
    values = _rounds(places, rows, columns, key, undo=undo)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        own = [_take_rows(each, outside) for each in (rows, columns, key)]
        again = _rounds(values[outside], *own, undo=undo)
        values[outside] = again
        outside = outside[again >= _take_rows(size, outside)]
    return values


def _take_rows(each: Each, rows: NDArray[np.int64]) -> Each:
    return each[rows] if isinstance(each, np.ndarray) else each


def _rounds(places: Words, rows: Each, columns: Each, key: Each, *, undo: bool) -> Words:
    """One bijection of the grid, or its inverse: uint64 `[k]` in [0, rows * columns)."""
    row = places // columns
    column = places - row * columns
    hashed, spare = np.empty_like(places), np.empty_like(places)
    numbers = range(_NUM_ROUNDS)
    for number in reversed(numbers) if undo else numbers:
        source, target, side = (column, row, rows) if number % 2 == 0 else (row, column, columns)
        np.add(source, np.uint64(number * _STEP & _MASK), out=hashed)
        np.add(hashed, key, out=hashed)
        np.multiply(hashed, _FIRST, out=hashed)
        np.right_shift(hashed, _HALF, out=spare)
        np.bitwise_xor(hashed, spare, out=hashed)
        np.multiply(hashed, _SECOND, out=hashed)
        # The upper 32 bits times the side, over 2**32: a number in [0, side) without a division.
        np.right_shift(hashed, _HALF, out=hashed)
        np.multiply(hashed, side, out=hashed)
        np.right_shift(hashed, _HALF, out=hashed)
        if undo:
            np.subtract(side, hashed, out=hashed)
        # (target + hashed) mod side: below zero wraps to a huge number, so the minimum is right.
        np.add(target, hashed, out=target)
        np.subtract(target, side, out=spare)
        np.minimum(target, spare, out=target)
    row *= columns
    row += column
    return row


def as_positions(positions: ArrayLike, num_positions: int) -> NDArray[np.int64]:
    """Return positions as int64 `[k]`, each in [0, num_positions); copies only to convert.

    Raises:
        TypeError: they are not whole numbers.
        ValueError: one is out of range, or the array has not one dimension.
    """
    array = np.asarray(positions)
    if array.ndim != 1:
        raise ValueError(f"positions must have one dimension, not the shape {array.shape}")
    if not array.size:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"positions must be whole numbers, not {array.dtype}")
    checked = array.astype(np.int64, copy=False)
    # Seen as unsigned, negative positions are huge: one pass finds both.
    if int(checked.view(np.uint64).max()) >= num_positions:
        raise ValueError(
            f"positions {int(array.min())} to {int(array.max())} were asked for, "
            f"an epoch has the positions 0 to {num_positions - 1}"
            if num_positions
            else f"position {int(array[0])} was asked for, the epoch is empty"
        )
    return checked
