"""Arguments that all of the plan shares: defaults, checks of numbers, digests of arrays."""

from __future__ import annotations

import hashlib
import json
import operator
from contextlib import suppress
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

# Values that are converted together.
_BLOCK = 1 << 20


class Default(int):
    """A number that is a default: it differs from the same number where a user passed it."""


DEFAULT_BATCH_SIZE = Default(64)


def whole(
    name: str, value: SupportsIndex, *, least: int | None = None, most: int | None = None
) -> int:
    """Return `value` as an int; numpy integers are fine.

    Raises:
        TypeError: it is a float, a str or a bool, which may be meant for another argument.
        ValueError: it is below `least` or above `most`.
    """
    number = None
    with suppress(TypeError):
        number = operator.index(value)
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if least is not None and number < least:
        raise ValueError(f"{name}={number} must be at least {least}")
    if most is not None and number > most:
        raise ValueError(f"{name}={number} must be at most {most}")
    return number


def digest_of_array(array: NDArray[Any], dtype: str, head: bytes = b"") -> str:
    """Return 16 hex digits of the values as `dtype`, after `head`; few pages of it at a time."""
    digest = hashlib.sha256(head)
    for begin in range(0, len(array), _BLOCK):
        digest.update(np.ascontiguousarray(array[begin : begin + _BLOCK], dtype).data)
    return digest.hexdigest()[:16]


def digest_of(value: Any) -> str:
    """12 hex digits for a value of JSON."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
