"""What each worker thread decodes, and since when, in memory shared with the trainer.

A thread writes its own record before each decoder or function of a `map()` that it calls (0.4 us),
and no thread waits for another. The trainer looks for records that have stood for longer than
`decode_timeout`, so that it can stop the worker and name the sample.
"""

from __future__ import annotations

import struct
import time
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from shardwise.errors import DecodeTimeoutError

# Begin in nanoseconds of the system-wide monotonic clock (0: nothing is decoded), sample, part,
# bytes of the key, bytes of the detail, the key, the detail. Longer ones are cut in messages. 520
# bytes, so that what lies behind a record is aligned.
_KEY_BYTES, _DETAIL_BYTES = 428, 64
_RECORD = struct.Struct(f"<qqqhh{_KEY_BYTES}s{_DETAIL_BYTES}s")
RECORD_BYTES = _RECORD.size


class Decoding(NamedTuple):
    """A record.

    Attributes:
        began_ns: when the decoder or function began, in nanoseconds of the monotonic clock.
        sample: the sample's id; -1 where a decoder has a whole column.
        part: the place of the field among the fields; of a `map()` -1 less its place.
        key: the sample's key.
        detail: what of it is decoded, such as the frames of a clip; "" where that is all of it.
    """

    began_ns: int
    sample: int
    part: int
    key: str
    detail: str = ""


@dataclass(frozen=True)
class DecodeProgress:
    """The record of one thread; in its worker a `shardwise.samples.DecodeWatch`.

    Attributes:
        memory: of `RECORD_BYTES`.
        stuck: (sample, part) of those that were stopped before: they are not begun again.
        timeout: `decode_timeout`, for the message.
    """

    memory: memoryview
    _: KW_ONLY
    stuck: frozenset[tuple[int, int]] = frozenset()
    timeout: float = 0.0

    def begin(self, sample: int, key: str, part: int, detail: str = "") -> None:
        """Write that a decoder or function begins.

        Raises:
            DecodeTimeoutError: this part of this sample was stopped before.
        """
        if self.stuck and (sample, part) in self.stuck:
            raise timeout_error(self.timeout, detail)
        name = key.encode("utf-8", "replace")[:_KEY_BYTES]
        more = detail.encode("utf-8", "replace")[:_DETAIL_BYTES]
        now = time.monotonic_ns()
        _RECORD.pack_into(self.memory, 0, now, sample, part, len(name), len(more), name, more)

    def end(self) -> None:
        """Write that nothing is decoded."""
        _RECORD.pack_into(self.memory, 0, 0, 0, 0, 0, 0, b"", b"")

    def read(self) -> Decoding | None:
        """The record; None while nothing is decoded. Half a record where it is just written."""
        began_ns, sample, part, key_bytes, detail_bytes, *texts = _RECORD.unpack_from(self.memory)
        if not began_ns:
            return None
        key, detail = (
            text[:length].decode("utf-8", "ignore")
            for text, length in zip(texts, (key_bytes, detail_bytes), strict=True)
        )
        return Decoding(began_ns, sample, part, key, detail)


def timeout_error(timeout: float, detail: str = "") -> DecodeTimeoutError:
    """The error of a sample whose decoder or function was stopped."""
    return DecodeTimeoutError(
        f"{detail}{': ' if detail else ''}a decoder or function did not return within "
        f"decode_timeout={timeout:g} s, and its worker process was stopped: raise decode_timeout= "
        "if it may take this long, or leave such samples out with on_error='skip' or 'replace'"
    )
