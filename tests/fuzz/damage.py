"""What hypothesis does to bytes and to JSON that are sound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

# A case: the name of a file (its suffix says what it is) and the file's bytes.
Case = tuple[str, bytes]

BLOCK = 512
# What fields of formats are made of, at their limits.
_WORDS = (
    b"\0", b"\0" * 8, b"\xff" * 8, b"7" * 11, b"9" * 20, b"-1", b"\x80" + b"\0" * 6 + b"\1",
    b"././@LongLink", b"11 path=a\0b\n", b"path=", b"GNU.sparse.name=", b"ustar  \0", b"../", b"/",
    b"\n", b"\r", b'"', b"{", b"[" * 2000, b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\\u0000", b"1e999",
    b"NaN", b"null", b"18446744073709551616", b"PAR1",
)  # fmt: skip
# In place of a value of JSON, and before or behind a text in it.
_VALUES = (
    None, True, 0, -1, 2**63, 2**64, 10**40, -(2**70), 0.5, float("inf"), float("nan"), "", "x",
    "-1", "../x", "/etc/passwd", "pipe:ls", [], [None], [float("inf")], [-1, 5], {}, {"a": {}},
)  # fmt: skip
_ENDS = ("\0", "\ud800", "9" * 30, "/../x", "?a=b", "\n", "]")


@st.composite
def damaged(draw: Any, seed: bytes) -> bytes:
    """A few bytes changed, left out, doubled or put in."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.sampled_from((1, 1, 2, 8, 12, 64, BLOCK)))
        match draw(st.sampled_from(("flip", "byte", "word", "insert", "cut", "drop", "double"))):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "byte" if data:
                data[at] = draw(st.integers(0, 255))
            case "word":
                word = draw(st.sampled_from(_WORDS))
                data[at : at + len(word)] = word
            case "insert":
                data[at:at] = draw(st.sampled_from(_WORDS))
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length]
    return bytes(data)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a value of JSON."""
    yield path
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _paths(part, (*path, name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _paths(part, (*path, number))


def _replaced(value: Any, path: tuple[Any, ...], new: Callable[[Any], Any]) -> Any:
    """A value with another one at a place; an empty list leaves the place out."""
    if not path:
        return next(iter(new(value)), None)
    first, rest = path[0], path[1:]
    places = value.items() if isinstance(value, dict) else enumerate(value)
    found = [(k, [v] if k != first else new(v) if not rest else [_replaced(v, rest, new)])
             for k, v in places]  # fmt: skip
    parts = [(name, part[0]) for name, part in found if part]
    return dict(parts) if isinstance(value, dict) else [part for _, part in parts]


@st.composite
def altered(draw: Any, value: Any) -> Any:
    """A value of JSON with something in it replaced or left out."""

    def new(old: Any) -> list[Any]:
        if isinstance(old, str) and draw(st.booleans()):
            end = draw(st.sampled_from(_ENDS))
            return [old + end if draw(st.booleans()) else end + old]
        return draw(st.sampled_from([[], *([value] for value in _VALUES)]))

    for _ in range(draw(st.integers(1, 2))):
        value = _replaced(value, draw(st.sampled_from(list(_paths(value)))), new)
    return value


def json_text(value: Any) -> bytes:
    return json.dumps(value).encode()
