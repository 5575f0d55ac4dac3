"""One rule for bytes from elsewhere: what a parser raises of them becomes this library's error.

A list of exception types around a parser is never whole: pyarrow, numpy and json raise a dozen, and
code in Rust raises its panics as a `BaseException`, which passes `except Exception`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shardwise.base.errors import DataError, ShardwiseError, message_of


@contextmanager
def as_data_error(what: str, *, url: str, **where: Any) -> Iterator[None]:
    """Raise whatever is raised inside as a DataError; errors of this library pass, with a url.

    Args:
        what: the start of the message, before the parser's own words.
        url: the file that the bytes are from.
        where: more attributes of the DataError: key, field, offset, index.
    """
    try:
        yield
    except ShardwiseError as error:
        if isinstance(error, DataError) and error.url is None:
            error.url = url
        raise
    except BaseException as error:
        # Python's own MemoryError is this machine's; pyarrow's is of a size that the bytes state.
        if is_signal(error) or type(error) is MemoryError:
            raise
        message = message_of(error).strip() or type(error).__name__
        raise DataError(f"{what}: {message}", url=url, **where) from error


def is_signal(error: BaseException) -> bool:
    """Whether an exception is a signal, such as KeyboardInterrupt; a panic in Rust is an error."""
    return not isinstance(error, Exception) and type(error).__name__ != "PanicException"
