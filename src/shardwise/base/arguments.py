"""Arguments of a wrong type, refused by name before they get far."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, TypeVar
from urllib.parse import urlsplit

_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


# Names shown in a message: keys with dots make a field of each sample.
_MAX_SHOWN = 20

# Arguments of methods that the engine calls for each batch.
_OF_BATCHES = {"ids", "positions", "steps"}

_Called = TypeVar("_Called", bound=Callable[..., Any])


def suggest_names(called: _Called) -> _Called:
    """Have a function, or a class and its methods, suggest names for an unknown argument."""
    function: Any = vars(called)["__init__"] if isinstance(called, type) else called
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name[0] != "_" and name != "self"]
    kinds = [each.kind for each in parameters.values()]
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    most = math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else sum(k < 2 for k in kinds)

    @functools.wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        for name in () if takes_any else arguments.keys() - parameters.keys():
            # Rarely needed.
            from shardwise.base.hints import hint_for_argument

            raise TypeError(
                f"{called.__name__}() has no argument {name}={arguments[name]!r:.80}"
                f"{hint_for_argument(name, known)}"
            )
        if len(args) > most:
            raise TypeError(
                f"{called.__name__}() has no place for {args[int(most)]!r:.80}: its arguments are "
                f"{', '.join(f'{each}=' for each in known)}"
            )
        return function(*args, **arguments)

    if not isinstance(called, type):
        return call  # type: ignore[return-value]
    called.__init__ = call  # type: ignore[misc]
    for name, method in inspect.getmembers(called, inspect.isfunction):
        is_plain = inspect.isfunction(inspect.getattr_static(called, name))
        # `set_epoch` may warn, of the line that called it.
        is_public = name[0] != "_" and name != "set_epoch"
        names = inspect.signature(method).parameters
        if is_plain and is_public and len(names) > 1 and _OF_BATCHES.isdisjoint(names):
            setattr(called, name, suggest_names(method))
    return called


def near_name(name: Any, names: Iterable[Any]) -> str:
    """Suggest the most similar name, as the end of a message: "" where none is similar."""
    from difflib import get_close_matches

    by_case = {each.lower(): each for each in names if isinstance(each, str)}
    alike = isinstance(name, str) and get_close_matches(name.lower(), by_case, n=1, cutoff=0.75)
    return f"; did you mean {by_case[alike[0]]!r}?" if alike else ""


def no_such_field(name: Any, known: Sequence[str], *, kind: str = "fields") -> str:
    """Describe a missing field: the fields that exist, and which one may be meant."""
    there = ", ".join(map(repr, known[:_MAX_SHOWN])) or "none"
    if len(known) > _MAX_SHOWN:
        there += f" and {len(known) - _MAX_SHOWN:,} more"
    longer = next((each for each in known if each.endswith(f".{name}")), None)
    hint = near_name(name, known)
    if longer is not None:
        hint = (
            f"; a field's name begins at the first dot of a member's name, as in {longer!r}: "
            "rename the members if the dot is part of their key"
        )
    return f"no field {name!r:.80}: the {kind} are {there}{hint}"


def check_choice(
    name: str, value: Any, choices: Iterable[Any], *, of: str = "", more: str = ""
) -> None:
    """Raise ValueError for another value; `of` is the function, `more` what else it takes."""
    choices = tuple(choices)
    if isinstance(value, str | bool | None) and value in choices:
        return
    argument = f"{name}={value!r:.80}"
    raise ValueError(
        f"{f'{of}({argument})' if of else argument}: use one of "
        f"{', '.join(map(repr, choices))}{more}{near_name(value, choices)}"
    )


def check_number(name: str, value: Any, *, least: float | None = None) -> None:
    """Refuse a value that is not a number above 0, or of at least `least` if that is given."""
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not a {type(value).__name__}")
    if not (number > 0 if least is None else number >= least):
        bound = "above 0" if least is None else f"{least:g} or more"
        raise ValueError(f"{name}={value}: it must be {bound}")


def check_flag(name: str, value: Any) -> None:
    """Refuse a value that is not a bool: Python takes "False", a non-empty str, for True."""
    # Not at the top: `shardwise --help` shows without importing NumPy.
    import numpy as np

    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r:.80}: use True or False")


def check_function(name: str, value: Any) -> None:
    """Refuse a value that is neither a function nor None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name}={value!r:.80}: use a function, or None")


def path_text(name: str, value: Any) -> str:
    """A path or a URL as str; ValueError for a name that no file can have."""
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
    """A directory, local or remote, as str; ValueError for a URL without a host or bucket."""
    text = path_text(name, value)
    if _REMOTE.match(text):
        try:
            host = urlsplit(text).netloc
        except ValueError as error:
            raise ValueError(f"{name}={text!r} is no URL: {error}") from None
        if not host:
            raise ValueError(f"{name}={text!r} names no host or bucket")
    return text
