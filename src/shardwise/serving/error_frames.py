"""Errors as frames: an error at a server is an answer, raised at the client as the same error.

An error travels by its name, its arguments and its plain attributes, never pickled. Errors of this
library and of Python come back as their own type; others as a RuntimeError that names theirs.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import shardwise.errors as library
from shardwise.engine.processes.worker_errors import traceback_of
from shardwise.errors import ShardwiseError, message_of
from shardwise.serving.frames import Encoded, Frame, FrameError, encoded

_PLAIN = (str, int, float, type(None))


def encode_error(error: Exception, *, place: str) -> Encoded:
    """An error with its cause as a frame; a note says where it was raised: the server."""
    lines = traceback_of(error.__cause__ or error)
    where = f"at the batch server {place}"
    origin = error if error.__cause__ is None else error.__cause__
    body = _described(error)
    described = body if origin is error else _described(origin)
    described["notes"] = [*described["notes"], f"{where}:\n{lines}" if lines else where]
    return encoded({"error": body, "cause": None if origin is error else described})


def _described(error: BaseException) -> dict[str, Any]:
    name = type(error).__name__
    is_known = _type_of(name) is type(error)
    args = error.args if is_known else (f"{type(error).__qualname__}: {message_of(error)}",)
    if not all(isinstance(each, _PLAIN) for each in args):
        args = (message_of(error),)
    attributes = {
        key: value
        for key, value in (vars(error) if isinstance(error, ShardwiseError) else {}).items()
        if isinstance(value, _PLAIN)
    }
    return {
        "name": name if is_known else "RuntimeError",
        "args": list(args),
        "attributes": attributes,
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
    }


def decode_error(frame: Frame) -> Exception:
    """The exception that a server put into a frame.

    Raises:
        FrameError: the frame holds no error.
    """
    try:
        error = _made(frame.body["error"])
        if frame.body["cause"] is not None:
            error.__cause__ = _made(frame.body["cause"])
    except (ValueError, TypeError, KeyError, AttributeError) as wrong:
        raise FrameError(f"an error that is none: {wrong}") from None
    return error


def _type_of(name: str) -> type[Exception] | None:
    """The exception of this name that a client makes; None for all others."""
    found = getattr(library, name, None) or getattr(builtins, name, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    # Inside a generator, as `Executor.run` is one, it would end the epoch.
    return None if issubclass(found, StopIteration) else found


def _made(described: Mapping[str, Any]) -> Exception:
    kind = _type_of(described["name"]) or RuntimeError
    args = described["args"]
    if not all(isinstance(each, _PLAIN) for each in args):
        raise ValueError("arguments")
    if issubclass(kind, ShardwiseError):
        # Without the constructor, which takes keyword arguments.
        error: Exception = (
            OSError.__new__(kind, *args) if issubclass(kind, OSError) else kind.__new__(kind, *args)
        )
        error.args = tuple(args)
        for name, value in described["attributes"].items():
            if isinstance(name, str) and isinstance(value, _PLAIN) and not name.startswith("__"):
                setattr(error, name, value)
    else:
        try:
            error = kind(*args)
        except TypeError:  # some of Python's own want other arguments
            error = RuntimeError(f"{kind.__name__}: {', '.join(map(str, args))}")
    for note in described["notes"]:
        error.add_note(str(note))
    return error
