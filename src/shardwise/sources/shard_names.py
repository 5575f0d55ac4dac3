"""The names of many shards: numbered runs as a pattern, the others as they are.

A million names such as "train-0000017.tar" are one pattern of 40 bytes in place of 100 MB of text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Shorter runs are kept as names: a pattern takes about as much as this many of them.
_MIN_RUN = 8


class LazyNames(Sequence[str]):
    """Names that become text on request, by `one`."""

    __slots__ = ()

    def one(self, place: int) -> str:
        """The name at a position from 0 on."""
        raise NotImplementedError

    def __getitem__(self, number: Any) -> Any:
        places = range(len(self))[number]
        return self.one(places) if isinstance(places, int) else [*map(self.one, places)]

    def __iter__(self) -> Iterator[str]:
        return map(self.one, range(len(self)))


@dataclass(frozen=True)
class NumberedNames(LazyNames):
    """Names with one ascending number of `width` digits or more: `length` of them from `first`."""

    prefix: str
    suffix: str
    first: int
    width: int
    length: int

    def __len__(self) -> int:
        return self.length

    def one(self, place: int) -> str:
        return f"{self.prefix}{self.first + place:0{self.width}d}{self.suffix}"


class ShardNames(LazyNames):
    """Names in parts, each numbered or listed; made into text on request.

    >>> names = ShardNames.of([f"a-{i:03d}.tar" for i in range(100)])
    >>> len(names), names[7], names.parts
    (100, 'a-007.tar', (NumberedNames(prefix='a-', suffix='.tar', first=0, width=3, length=100),))
    """

    __slots__ = ("_ends", "parts")

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self.parts = tuple(parts)
        self._ends = list(accumulate(map(len, self.parts)))

    @classmethod
    def of(cls, names: Sequence[str]) -> ShardNames:
        """The same names, with numbered runs found: 0.3 us per name of a run, 4 us for others."""
        if isinstance(names, cls):
            return names
        parts: list[Sequence[str]] = []
        others: list[str] = []
        start = 0
        while start < len(names):
            run = _run(names, start)
            if run is None:
                others.append(names[start])
                start += 1
                continue
            if others:
                parts.append(others)
                others = []
            parts.append(run)
            start += run.length
        return cls([*parts, others] if others else parts)

    @classmethod
    def joined(cls, names: Sequence[Sequence[str]]) -> Sequence[str]:
        """Several sequences of names, one after the other, without a copy of their texts."""
        if len(names) == 1:
            return names[0]
        return cls(
            [part for each in names for part in (each.parts if isinstance(each, cls) else [each])]
        )

    def examples(self) -> Iterator[str]:
        """The first and the last name of each numbered run, and all others."""
        for part in self.parts:
            if isinstance(part, NumberedNames):
                yield part[0]
                yield part[-1]
            else:
                yield from part

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def one(self, place: int) -> str:
        owner = bisect_right(self._ends, place)
        return self.parts[owner][place - (self._ends[owner - 1] if owner else 0)]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardNames, (self.parts,)


def _run(names: Sequence[str], start: int) -> NumberedNames | None:
    """The numbered run that starts at a position; None if it is shorter than `_MIN_RUN`."""
    last = start + _MIN_RUN - 1
    if last >= len(names):
        return None
    run = _pattern(names[start], names[start + 1])
    if run is None or run.one(_MIN_RUN - 1) != names[last]:
        return None
    end = start + 2
    while end < len(names) and run.one(end - start) == names[end]:
        end += 1
    return replace(run, length=end - start) if end - start >= _MIN_RUN else None


def _pattern(one: str, two: str) -> NumberedNames | None:
    """The pattern of two names that differ in a number only, which is one more in the second."""
    pairs = zip(one, two, strict=False)
    begin = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))
    while begin and _is_digit(one[begin - 1]):
        begin -= 1
    end = begin
    while end < len(one) and _is_digit(one[end]):
        end += 1
    digits = one[begin:end]
    if not 0 < len(digits) <= 18:
        return None
    width = len(digits) if digits[0] == "0" else 1
    run = NumberedNames(one[:begin], one[end:], int(digits), width, 2)
    if run.one(0) == one and run.one(1) == two:
        return run
    # Without a zero in front, "100" may be of width 1 or 3: the same names from here on.
    return None


def _is_digit(character: str) -> bool:
    return character.isascii() and character.isdigit()


class PackedNames(LazyNames):
    """Names in a column of bytes, each up to its end in `ends`, decoded at access."""

    __slots__ = ("_ends", "_first", "_last", "_text")

    def __init__(self, text: NDArray[Any], ends: NDArray[Any], first: int, last: int) -> None:
        if not 0 <= first <= last <= len(ends):
            raise ValueError(f"names {first} to {last} of {len(ends)}")
        self._text, self._ends = text, ends
        self._first, self._last = first, last

    @classmethod
    def of(cls, text: NDArray[Any] | None, ends: NDArray[Any] | None) -> PackedNames:
        """All names; a column None is empty. ValueError if the columns do not fit together."""
        text = np.empty(0, np.uint8) if text is None else text
        ends = np.empty(0, np.uint8) if ends is None else ends
        if text.dtype != np.uint8 or (int(ends[-1]) if len(ends) else 0) != len(text):
            raise ValueError("the names do not take the bytes of their column")
        if (ends[:-1] > ends[1:]).any():
            raise ValueError("the names are not behind one another")
        return cls(text, ends, 0, len(ends))

    def part(self, first: int, last: int) -> PackedNames:
        """The names of some positions."""
        return PackedNames(self._text, self._ends, first, last)

    def __len__(self) -> int:
        return self._last - self._first

    def one(self, place: int) -> str:
        place += self._first
        start = self._ends.item(place - 1) if place else 0
        return str(self._text[start : self._ends.item(place)].data, "utf-8", "surrogateescape")
