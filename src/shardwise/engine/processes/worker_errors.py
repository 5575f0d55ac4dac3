"""Errors on their way from a worker process: with their cause, and the frames of the user's code.

Pickling takes tracebacks and causes away. So an error travels together with its cause, and with
the worker's traceback as a note, from the first frame that is not this library's on.
"""

from __future__ import annotations

import os
import pickle
import traceback
from pathlib import Path
from types import TracebackType

from shardwise.base.errors import ShardwiseError, message_of

_LIBRARY = str(Path(__file__).parents[1]) + os.sep


def pack_error(error: Exception) -> bytes:
    """Pickle an exception with its cause; as text where it does not pickle."""
    cause = error.__cause__
    origin = cause or error
    where = f"in worker process {os.getpid()}"
    lines = traceback_of(origin)
    origin.add_note(f"{where}:\n{lines}" if lines else where)
    return pickle.dumps([_pickle_error(each) for each in (error, cause) if each is not None])


def unpack_error(data: bytes) -> Exception:
    """The exception of a worker of this process's own."""
    error, *causes = (pickle.loads(each) for each in pickle.loads(data))  # noqa: S301 - our own
    if causes:
        error.__cause__ = causes[0]
    original: Exception = error
    return original


def traceback_of(error: BaseException) -> str:
    """An error's traceback, with its causes, without this library's frames at the start."""
    frames = _without_library(error.__traceback__)
    if frames is None and not isinstance(error, ShardwiseError):
        # Raised by this library: keep all frames.
        frames = error.__traceback__
    formatted = traceback.TracebackException(type(error), error, frames)
    if frames is None and formatted.__cause__ is None and formatted.__context__ is None:
        return ""
    num_own = len(list(formatted.format_exception_only()))
    return "".join(list(formatted.format())[:-num_own]).rstrip()


def _without_library(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_LIBRARY):
        frames = frames.tb_next
    return frames


def _pickle_error(error: BaseException) -> bytes:
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - our own; some errors pickle but do not come back
    except Exception:  # noqa: BLE001 - whatever a foreign exception's own code raises
        substitute = RuntimeError(f"{type(error).__qualname__}: {message_of(error)}")
        for note in getattr(error, "__notes__", ()):
            substitute.add_note(note)
        return pickle.dumps(substitute)
    return pickled
