"""Outages of a store: how long its requests are retried, and the warnings meanwhile.

Requests are bounded by time, not by attempts: a store that is restarting refuses connections at
once, so any number of attempts is used up in seconds. Used in the event loop's thread only.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shardwise.base.counters import IO_COUNTS, OUTAGES

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger("shardwise")

# Shorter outages, which the next attempt repairs, are not worth a warning.
_WARN_AFTER_S = 10.0


class Outage:
    """The requests to one store that have failed and are being retried."""

    def __init__(self) -> None:
        self._bound_s = 0.0
        self._num_waiting = 0
        self._since = self._counted_until = 0.0
        self._cause = self._url = ""
        self._is_warned = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, since: float, bound_s: float) -> None:
        """A request has failed for the first time; it started at `since` (monotonic seconds).

        It is tried for `bound_s`, which is less where the host has never answered.
        """
        self._bound_s = bound_s
        self._num_waiting += 1
        if self._num_waiting > 1:
            return
        self._since = self._counted_until = since
        import asyncio

        late_s = max(0.0, since + _WARN_AFTER_S - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(late_s, self._warn)

    def failed(self, url: str, cause: str) -> None:
        """Another attempt has failed."""
        self._url, self._cause = url, cause
        OUTAGES[id(self)] = f"waiting for {url!r}: {cause}"
        self._count()

    def end(self, *, is_back: bool) -> None:
        """A request that had failed is over: it succeeded, or was given up."""
        self._num_waiting -= 1
        if self._num_waiting:
            return
        self._count()
        OUTAGES.pop(id(self), None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_warned and is_back:
            _log.warning(
                "the store of %r answers again, after %.0f s",
                self._url,
                time.monotonic() - self._since,
            )
        self._is_warned = False

    def _warn(self) -> None:
        waited_s = time.monotonic() - self._since
        self._is_warned = True
        _log.warning(
            "the store of %r has not answered for %.0f s (%s): trying for up to %.0f s more, %g s "
            "in all",
            self._url,
            waited_s,
            self._cause,
            max(0.0, self._bound_s - waited_s),
            self._bound_s,
        )

    def _count(self) -> None:
        now = time.monotonic()
        IO_COUNTS.add(outage_ms=int(1000 * (now - self._counted_until)))
        self._counted_until = now
