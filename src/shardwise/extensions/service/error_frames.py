"""Errors as frames: an error at a server is an answer, raised at the client as the same error.

An error travels by its name, its arguments and the attributes that its class declares, never
pickled. Errors of this library and of Python come back as their own type; others as a RuntimeError
that names theirs. Control characters of a server are escaped: an error is shown on terminals.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, get_type_hints

import shardwise.base.errors as library
from shardwise.base.errors import ShardwiseError, message_of
from shardwise.base.shown import escaped
from shardwise.engine.processes.worker_errors import traceback_of
from shardwise.extensions.service.frames import Encoded, Frame, decoding, encoded

_PLAIN = (str, int, float, type(None))


def encode_error(error: BaseException, *, place: str) -> Encoded:
    """An error with its cause as a frame; a note names the server that raised it."""
    try:
        return _encode_error(error, place)
    except Exception as failed:  # noqa: BLE001 - foreign errors' code, and numbers that JSON lacks
        text = f"{type(error).__name__}, which can't be sent: {type(failed).__name__}"
        return _encode_error(RuntimeError(text), place)


def _encode_error(error: BaseException, place: str) -> Encoded:
    lines = traceback_of(error.__cause__ or error)
    where = f"at the batch server {place}"
    origin = error if error.__cause__ is None else error.__cause__
    body = _describe_error(error)
    described = body if origin is error else _describe_error(origin)
    described["notes"] = [*described["notes"], f"{where}:\n{lines}" if lines else where]
    return encoded({"error": body, "cause": None if origin is error else described})


def _describe_error(error: BaseException) -> dict[str, Any]:
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
    """The exception that a server put into a frame."""
    with decoding("error"):
        error = _make_error(frame.body["error"])
        if frame.body["cause"] is not None:
            error.__cause__ = _make_error(frame.body["cause"])
    return error


def _type_of(name: str) -> type[Exception] | None:
    """The exception of this name that a client makes; None for all others."""
    found = getattr(library, name, None) or getattr(builtins, name, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    # Inside a generator, as `Executor.run` is one, it would end the epoch.
    return None if issubclass(found, StopIteration) else found


def _make_error(described: Mapping[str, Any]) -> Exception:
    name = str(_escape_value(described["name"]))
    args = [_escape_value(each) for each in described["args"]]
    kind = _type_of(name)
    if kind is None:
        kind, args = RuntimeError, [f"{name}: {', '.join(map(str, args))}"]
    if issubclass(kind, ShardwiseError):
        # Without the constructor, which takes keyword arguments.
        error: Exception = (
            OSError.__new__(kind, *args) if issubclass(kind, OSError) else kind.__new__(kind, *args)
        )
        error.args = tuple(args)
        declared = get_type_hints(kind)
        for name, value in described["attributes"].items():
            if name in declared and isinstance(value, declared[name]):
                setattr(error, name, _escape_value(value))
    else:
        try:
            error = kind(*args)
        except TypeError:  # some of Python's own want other arguments
            error = RuntimeError(f"{kind.__name__}: {', '.join(map(str, args))}")
    for note in described["notes"]:
        error.add_note(str(_escape_value(note)))
    return error


def _escape_value(value: Any) -> Any:
    if not isinstance(value, _PLAIN):
        raise TypeError(f"a {type(value).__name__} in an error")
    return escaped(value, keep="\n\t") if isinstance(value, str) else value
