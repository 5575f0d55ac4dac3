"""Brace patterns: `{000..123}`, `{0..10..2}`, `{a,b}`, nested, as a shell expands them.

Pure text: no file is looked up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from shardwise.shown import shown

# A guard against {0..999999999999}: more names than any dataset has shards.
MAX_NAMES = 10_000_000
_MAX_DEPTH = 50

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a range, padded with zeros to `width`."""

    first: int
    stride: int
    count: int
    width: int


# A part of a pattern: a text, a range of numbers, or alternatives.
_Part: TypeAlias = "str | _Numbers | list[list[_Part]]"


def expand_braces(text: str) -> list[str]:
    """Expand a brace pattern into names, in the order that they are written.

    A number range keeps zero padding (`{08..10}` is 08, 09, 10), may count down and may have a
    step. Braces without a comma and a range, such as `{x}`, stay as they are.

    >>> expand_braces("part-{08..10}.tar")
    ['part-08.tar', 'part-09.tar', 'part-10.tar']
    >>> expand_braces("{train,val-{a,b}}.tar")
    ['train.tar', 'val-a.tar', 'val-b.tar']

    Raises:
        ValueError: braces are not balanced or more than 50 deep, a step is 0, or there are more
            than MAX_NAMES names.
    """
    try:
        parts = _parse(text, 0)
    except ValueError as error:
        raise ValueError(f"{error} in the pattern {shown(text)!r:.200}") from None
    count = _count(parts)
    if count > MAX_NAMES:
        number = f"{count:,}" if count < 10**30 else "more than 10**30"
        raise ValueError(
            f"the pattern {shown(text)!r:.200} stands for {number} names: at most {MAX_NAMES:,} "
            "are expanded"
        )
    return _names(parts)


def _parse(text: str, depth: int) -> list[_Part]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"braces are more than {_MAX_DEPTH} deep")
    parts: list[_Part] = []
    rest = text
    while rest:
        head, brace, tail = rest.partition("{")
        if "}" in head:
            raise ValueError("unbalanced '}'")
        parts.append(head)
        if not brace:
            break
        inner, rest = _split_group(tail)
        numbers = _RANGE.fullmatch(inner)
        if numbers:
            parts.append(_numbers(*numbers.groups()))
            continue
        options = [_parse(option, depth + 1) for option in _split_commas(inner)]
        parts += [options] if len(options) > 1 else ["{", *options[0], "}"]
    return parts


def _count(parts: list[_Part]) -> int:
    """How many names there are, without making them."""
    count = 1
    for part in parts:
        if isinstance(part, _Numbers):
            count *= part.count
        elif not isinstance(part, str):
            count *= sum(map(_count, part))
    return count


def _names(parts: list[_Part]) -> list[str]:
    names = [""]
    for part in parts:
        if isinstance(part, str):
            options = [part]
        elif isinstance(part, _Numbers):
            stop = part.first + part.stride * part.count
            options = [f"{n:0{part.width}d}" for n in range(part.first, stop, part.stride)]
        else:
            options = [name for option in part for name in _names(option)]
        names = [name + option for name in names for option in options]
    return names


def _split_group(tail: str) -> tuple[str, str]:
    """Split what follows a `{` at the `}` that closes it."""
    depth = 1
    for at, char in enumerate(tail):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return tail[:at], tail[at + 1 :]
    raise ValueError("unbalanced '{'")


def _numbers(first: str, last: str, step: str | None) -> _Numbers:
    start, stop = int(first), int(last)
    stride = abs(int(step)) if step is not None else 1
    if stride == 0:
        raise ValueError("the step of a range is 0")
    padded = any(re.match(r"-?0\d", number) for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    count = abs(stop - start) // stride + 1
    return _Numbers(start, stride if start <= stop else -stride, count, width)


def _split_commas(inner: str) -> list[str]:
    parts = [""]
    depth = 0
    for char in inner:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts
