"""What each worker thread decodes, and since when, in memory shared with the trainer.

A thread writes its own record before each decoder or function of a `map()` that it calls (0.4 us),
and no thread waits for another. The trainer looks for records that have stood for longer than
`decode_timeout`, so that it can stop the worker and name the sample.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from shardwise.errors import DecodeTimeoutError

__all__ = ["RECORD_BYTES", "Decoding", "DecodeProgress", "timeout_error"]

# Begin in nanoseconds of the system-wide monotonic clock (0: nothing is decoded), sample, part,
# bytes of the key, the key. A longer key is cut in messages.
_RECORD = struct.Struct("<qqqq480s")
RECORD_BYTES = _RECORD.size


class Decoding(NamedTuple):
    """A record.

    Attributes:
        began_ns: when the decoder or function began, in nanoseconds of the monotonic clock.
        sample: the sample's id; -1 where a decoder has a whole column.
        part: the place of the field among the fields; of a `map()` -1 less its place.
        key: the sample's key.
    """

    began_ns: int
    sample: int
    part: int
    key: str


class DecodeProgress:
    """The record of one thread; in its worker a `shardwise.samples.DecodeWatch`.

    Args:
        memory: of `RECORD_BYTES`.
        stuck: (sample, part) of those that were stopped before: they are not begun again.
        timeout: `decode_timeout`, for the message.
    """

    def __init__(
        self,
        memory: memoryview,
        *,
        stuck: frozenset[tuple[int, int]] = frozenset(),
        timeout: float = 0.0,
    ) -> None:
        self._memory = memory
        self._stuck = stuck
        self._timeout = timeout

    def begin(self, sample: int, key: str, part: int) -> None:
        """Write that a decoder or function begins.

        Raises:
            DecodeTimeoutError: this part of this sample was stopped before.
        """
        if self._stuck and (sample, part) in self._stuck:
            raise timeout_error(self._timeout)
        name = key.encode("utf-8", "replace")
        _RECORD.pack_into(self._memory, 0, time.monotonic_ns(), sample, part, len(name), name)

    def end(self) -> None:
        """Write that nothing is decoded."""
        _RECORD.pack_into(self._memory, 0, 0, 0, 0, 0, b"")

    def read(self) -> Decoding | None:
        """The record; None while nothing is decoded. Half a record where it is just written."""
        began_ns, sample, part, length, name = _RECORD.unpack_from(self._memory)
        if not began_ns:
            return None
        return Decoding(began_ns, sample, part, name[:length].decode("utf-8", "ignore"))


def timeout_error(timeout: float) -> DecodeTimeoutError:
    """The error of a sample whose decoder or function was stopped."""
    return DecodeTimeoutError(
        f"a decoder or function did not return within decode_timeout={timeout:g} s, and its worker "
        "process was stopped: raise decode_timeout= if it may take this long, or leave such "
        "samples out with on_error='skip' or 'replace'"
    )
