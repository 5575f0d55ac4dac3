"""Arguments of a wrong type, refused by name before they get far."""

from __future__ import annotations

import operator
import os
import re
from contextlib import suppress
from numbers import Real
from typing import Any, SupportsIndex
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "as_positions",
    "check_flag",
    "check_function",
    "check_number",
    "directory_text",
    "path_text",
    "whole",
]

_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def check_number(name: str, value: Any, *, least: float | None = None) -> None:
    """Refuse what is no number above 0, or none of at least `least`.

    Raises:
        TypeError: it is no number.
        ValueError: it is too small, or no number that can be meant (nan).
    """
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not a {type(value).__name__}")
    if not (number > 0 if least is None else number >= least):
        bound = "above 0" if least is None else f"{least:g} or more"
        raise ValueError(f"{name}={value}: it must be {bound}")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is no bool: of "False", a str that is not empty, Python makes True.

    Raises:
        TypeError: it is neither True nor False.
    """
    # Not at the top: `shardwise --help` shows without importing NumPy.
    import numpy as np

    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r:.80}: use True or False")


def check_function(name: str, value: Any) -> None:
    """Refuse what is neither a function nor None.

    Raises:
        TypeError: it can't be called.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name}={value!r:.80}: use a function, or None")


def path_text(name: str, value: Any) -> str:
    """A path or a URL as str.

    Raises:
        TypeError: it is neither a str nor a path of str.
        ValueError: no file can have that name.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str or a path, not a {type(value).__name__}")
    if "\0" in text:
        raise ValueError(f"{name} holds a NUL, which no file's name can")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds a lone surrogate, which no file's name can") from None
    return text


def directory_text(name: str, value: Any) -> str:
    """A directory, local or remote, as str.

    Raises:
        TypeError: it is neither a str nor a path of str.
        ValueError: no directory can have that name, or a URL names no host or bucket.
    """
    text = path_text(name, value)
    if _REMOTE.match(text):
        try:
            host = urlsplit(text).netloc
        except ValueError as error:
            raise ValueError(f"{name}={text!r} is no URL: {error}") from None
        if not host:
            raise ValueError(f"{name}={text!r} names no host or bucket")
    return text


def whole(name: str, value: SupportsIndex, *, least: int | None = None) -> int:
    """Return `value` as an int; numpy integers are fine.

    Raises:
        TypeError: it is a float, a str or a bool, which may be meant for another argument.
        ValueError: it is below `least`.
    """
    number = None
    with suppress(TypeError):
        number = operator.index(value)
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if least is not None and number < least:
        raise ValueError(f"{name}={number} must be at least {least}")
    return number


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
