"""Brace patterns: `{000..123}`, `{0..10..2}`, `{a,b}`, nested, as a shell expands them.

Pure text: nothing here looks at files. Imports `shardwise.shown`.
"""

from __future__ import annotations

import re

from shardwise.shown import shown

__all__ = ["MAX_NAMES", "expand_braces"]

# A guard against {0..999999999999}: more names than any dataset has shards.
MAX_NAMES = 10_000_000

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")


def expand_braces(text: str) -> list[str]:
    """Expand a brace pattern into names, in the order that they are written.

    A number range keeps zero padding (`{08..10}` is 08, 09, 10), may count down and may have a
    step. Braces without a comma and a range, such as `{x}`, stay as they are.

    >>> expand_braces("part-{08..10}.tar")
    ['part-08.tar', 'part-09.tar', 'part-10.tar']
    >>> expand_braces("{train,val-{a,b}}.tar")
    ['train.tar', 'val-a.tar', 'val-b.tar']

    Raises:
        ValueError: braces are not balanced, a step is 0, or there are more than MAX_NAMES names.
    """
    names = [""]
    rest = text
    while rest:
        head, brace, tail = rest.partition("{")
        if "}" in head:
            raise ValueError(f"unbalanced '}}' in the pattern {shown(text)!r}")
        if not brace:
            options = [head]
            rest = ""
        else:
            inner, rest = _split_group(tail, text)
            options = [head + option for option in _options(inner, text)]
        _check_count(len(names) * len(options), text)
        names = [name + option for name in names for option in options]
    return names


def _split_group(tail: str, text: str) -> tuple[str, str]:
    """Split what follows a `{` at the `}` that closes it."""
    depth = 1
    for place, char in enumerate(tail):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return tail[:place], tail[place + 1 :]
    raise ValueError(f"unbalanced '{{' in the pattern {shown(text)!r}")


def _options(inner: str, text: str) -> list[str]:
    """List what one pair of braces stands for."""
    numbers = _RANGE.fullmatch(inner)
    if numbers:
        return _range(*numbers.groups(), text=text)
    parts = _split_commas(inner)
    expanded = [name for part in parts for name in expand_braces(part)]
    _check_count(len(expanded), text)
    return expanded if len(parts) > 1 else ["{" + name + "}" for name in expanded]


def _range(first: str, last: str, step: str | None, *, text: str) -> list[str]:
    """List the numbers of a range, padded as they are written."""
    start, stop = int(first), int(last)
    stride = abs(int(step)) if step is not None else 1
    if stride == 0:
        raise ValueError(f"the step of a range is 0 in the pattern {shown(text)!r}")
    span = range(start, stop + 1, stride) if start <= stop else range(start, stop - 1, -stride)
    padded = any(re.match(r"-?0\d", number) for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    # Not len(span), which overflows for absurd ranges before the guard can speak.
    _check_count(abs(stop - start) // stride + 1, text)
    return [f"{number:0{width}d}" for number in span]


def _split_commas(inner: str) -> list[str]:
    """Split at the commas outside of nested braces."""
    parts = [""]
    depth = 0
    for char in inner:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _check_count(count: int, text: str) -> None:
    if count > MAX_NAMES:
        raise ValueError(f"the pattern {shown(text)!r} stands for more than {MAX_NAMES} names")
