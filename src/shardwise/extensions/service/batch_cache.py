"""The batches that a server made last: trainers that read one plan in step share each of them.

A batch that is being built counts as there: a second request for it waits for the first one's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from shardwise.extensions.service.frames import Encoded, Kind

Answer = tuple[Kind, Encoded]


class _Waited(Future[Answer]):
    """An answer, and how many clients asked for it and have not left."""

    num_waiting = 0


class BatchCache:
    """The least recently used batches go first."""

    def __init__(self, max_bytes: int) -> None:
        self.num_built = self.num_shared = 0
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._answers: OrderedDict[bytes, _Waited] = OrderedDict()
        self._num_bytes = 0

    def get(self, key: bytes, build: Callable[[Future[Answer]], None]) -> _Waited:
        with self._lock:
            future = self._answers.get(key)
            if future is not None:
                self._answers.move_to_end(key)
                self.num_shared += 1
                future.num_waiting += 1
                return future
            self.num_built += 1
            future = self._answers[key] = _Waited()
            future.num_waiting = 1
        future.add_done_callback(lambda done: self._keep(key, done))
        build(future)
        return future

    def leave(self, key: bytes, future: _Waited) -> None:
        """Cancel what a client waited for, unless it is being built or another one waits."""
        with self._lock:
            future.num_waiting -= 1
            if future.num_waiting or future.running() or future.done():
                return
            del self._answers[key]
        future.cancel()

    def _keep(self, key: bytes, done: Future[Answer]) -> None:
        """Count a finished batch, and let go of others; an error is requested again."""
        with self._lock:
            if self._answers.get(key) is not done:
                return  # its clients left
            kind, answer = done.result()
            if kind != Kind.BATCH or answer.num_bytes > self._max_bytes:
                del self._answers[key]
                return
            self._num_bytes += answer.num_bytes
            for other, future in list(self._answers.items()):
                if self._num_bytes <= self._max_bytes:
                    break
                if future.done() and other != key:
                    del self._answers[other]
                    self._num_bytes -= future.result()[1].num_bytes
