"""Samples as the source read them, on their way through decoders and functions.

Every failure becomes a `DataError` that names url, key, field and index (I6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns
from shardwise.base.errors import DataError, DecodeTimeoutError, ShardwiseError, message_of
from shardwise.base.foreign_bytes import is_signal
from shardwise.base.shown import base_name
from shardwise.dataset.keyed_random import SampleKeys
from shardwise.sources.samples import DecodeWatch


@dataclass(slots=True)  # not frozen: that would cost a single sample a microsecond
class RawRows:
    """Samples as the source read them, with their ids in the dataset.

    `url_of` names the shard of a sample or a field, `keys` make the generators of keyed decoders,
    and `watch` learns which decoder or function begins.
    """

    ids: NDArray[np.int64]
    columns: Columns
    url_of: Callable[[int, str | None], str]
    keys: SampleKeys = field(default_factory=SampleKeys)
    watch: DecodeWatch | None = None

    def begin(self, row: int, part: int, value: Any = None) -> None:
        """Tell the watch what begins on this row's sample (`described`, if its value says that)."""
        if self.watch is not None:
            detail = getattr(value, "described", "")
            if not isinstance(detail, str):  # an object of the user's
                detail = ""
            self.watch.begin(int(self.ids[row]), self.columns.keys[row], part, detail)

    def begin_column(self, part: int) -> None:
        """Tell the watch that a decoder begins on a whole column."""
        if self.watch is not None and len(self.ids) == 1:
            self.begin(0, part)
        elif self.watch is not None:
            self.watch.begin(-1, "", part)

    def generator(self, row: int, stream: int) -> np.random.Generator:
        """The generator that a keyed decoder gets for the sample in this row."""
        return self.keys.generator(int(self.columns.ids[row]), stream)

    def error(
        self, row: int, message: str, *, field: str | None = None, offset: int | None = None
    ) -> DataError:
        """Make the error that says where the sample in this row lies."""
        return DataError(
            message,
            url=self.url_of(int(self.columns.ids[row]), field),
            key=self.columns.keys[row],
            field=field,
            offset=offset,
            index=int(self.ids[row]),
        )

    def blame(
        self, row: int, fn: Callable[..., Any], exc: BaseException, *, field: str | None = None
    ) -> NoReturn:
        """Raise the error for `exc`, which a decoder or function raised on the sample in this row.

        Errors that are not the data's, such as a missing package, stay as they are.
        """
        if is_signal(exc) or (isinstance(exc, ShardwiseError) and not isinstance(exc, DataError)):
            raise exc
        if isinstance(exc, DecodeTimeoutError):
            where = self.error(row, "", field=field)
            exc.url, exc.key, exc.field, exc.index = where.url, where.key, field, where.index
            raise exc
        reason = exc.reason if isinstance(exc, DataError) else message_of(exc)
        if field is None and isinstance(exc, TypeError) and "'dict'" in reason:
            reason += " (map() gives a function the whole sample, decode(name=fn) one field)"
        message = f"{name_of(fn)} raised {type(exc).__name__}: {reason}"
        traceback = exc.__traceback__
        cause = exc.with_traceback(traceback.tb_next if traceback else None)
        offset = exc.offset if isinstance(exc, DataError) else None
        raise self.error(row, message, field=field, offset=offset) from cause


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a decoder or function in messages."""
    name = getattr(fn, "__qualname__", None) or repr(fn)
    code = getattr(fn, "__code__", None)
    # "<lambda>" alone could be anywhere.
    if code is None or not name.endswith("<lambda>"):
        return name
    return f"{name} ({base_name(code.co_filename)}:{code.co_firstlineno})"
