"""The errors of shardwise: one tree, each also the built-in that a user would catch.

Messages say what happened, the values, and what to change. Errors pickle with their attributes,
because they travel from worker processes. Whatever URL stands in one is masked (`shown`), so that
a signature never gets into a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shardwise.base.shown import shown, shown_in


def message_of(error: BaseException) -> str:
    """The message of an exception, or a note that its `__str__` raises."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - foreign code
        return f"<its message can't be had: __str__ raised {type(failed).__name__}>"


class ShardwiseError(Exception):
    """The root of all errors that shardwise raises by itself."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shown_in(each) if isinstance(each, str) else each for each in args))

    def __setattr__(self, name: str, value: Any) -> None:
        """Mask the URLs in texts, also in those that are set later."""
        if isinstance(value, str):
            value = shown(value) if name == "url" else shown_in(value)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and attributes: constructors take keyword arguments."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[ShardwiseError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Make an error again without calling its constructor."""
    # An error with two built-in bases needs OSError's `__new__`: OSError has its own layout.
    error: Any = (
        OSError.__new__(cls, *args) if issubclass(cls, OSError) else cls.__new__(cls, *args)
    )
    error.args = args
    error.__dict__.update(state)
    return error


class DataError(ShardwiseError, ValueError):
    """Data that can't be used: damaged, missing, or of another form than requested.

    Attributes:
        url: the shard or file, or None; without its query, fragment and user, which may be secret.
        key: the sample's key, or None.
        field: the field of the sample (the member's extension), or None.
        offset: the byte in the shard where the damage starts, or None; where a decoder failed, the
            byte in the field's payload.
        index: the sample's id in its dataset, or None.
    """

    # Defaults for an error from elsewhere that lacks these attributes.
    reason: str = ""
    url: str | None = None
    key: str | None = None
    field: str | None = None
    offset: int | None = None
    index: int | None = None

    def __init__(
        self,
        message: str,
        *,
        url: str | None = None,
        key: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        index: int | None = None,
    ) -> None:
        self.reason = message
        self.url = url
        self.key = key
        self.field = field
        self.offset = offset
        self.index = index
        super().__init__(message)

    def __str__(self) -> str:
        where = [
            f"{name} {value!r}" if isinstance(value, str) else f"{name} {value}"
            for name, value in (
                ("url", self.url),
                ("key", self.key),
                ("field", self.field),
                ("offset", self.offset),
                ("index", self.index),
            )
            if value is not None
        ]
        reason = self.reason or super().__str__()
        return f"{reason} ({', '.join(where)})" if where else reason


class MissingShardError(DataError, FileNotFoundError):
    """A shard that the dataset names is not there."""

    __str__ = DataError.__str__


class StaleIndexError(DataError):
    """A shard is not the one that its index was made from, or that the dataset was opened with."""


class StorageError(ShardwiseError, OSError):
    """Bytes could not be read or written, though the data may be whole."""


class StateError(ShardwiseError, ValueError):
    """A state belongs to other data, another seed or another order; the message is a diff."""


class StallError(ShardwiseError, TimeoutError):
    """A batch was not ready within the loader's `timeout`; the message names what is late."""


class DecodeTimeoutError(DataError, StallError):
    """A decoder or function did not return within `decode_timeout`; names the sample."""

    __str__ = DataError.__str__


class WorkerError(ShardwiseError, RuntimeError):
    """A worker process ended before its work was done.

    Attributes:
        exitcode: the exit code of the process; negative for a signal, None where it is unknown.
    """

    exitcode: int | None = None

    def __init__(self, message: str, *, exitcode: int | None = None) -> None:
        self.exitcode = exitcode
        super().__init__(message)


class ServiceError(ShardwiseError, RuntimeError):
    """A batch server can't be used: it has other data, other code or another token."""


class RankError(ShardwiseError, RuntimeError):
    """Rank and world size can't be determined for certain."""


class MissingExtraError(ShardwiseError, ImportError):
    """A package of an extra is not installed; the message names the extra."""

    extra: str = ""

    def __init__(self, what: str, *, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what}: install it with pip install 'shardwise[{extra}]'")


@contextmanager
def imports_of(extra: str, what: str) -> Iterator[None]:
    """Raise `MissingExtraError` with the message `what` if an import inside fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, extra=extra) from error


class MissingTorchError(MissingExtraError):
    """torch is not installed; `output="numpy"` needs none."""

    def __init__(self) -> None:
        self.extra = "torch"
        ShardwiseError.__init__(
            self,
            "tensors need torch, which is not installed: pip install torch, or take arrays with "
            "sw.DataLoader(..., output='numpy')",
        )


class FrameworkError(ShardwiseError, RuntimeError):
    """A training framework would not treat a loader right; the message names what to use."""
