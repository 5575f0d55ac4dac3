"""Blocking calls in threads."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from shardwise.storage.requests.blocking import in_thread


class Connection:
    """What a failing call holds."""


def test_what_a_failed_call_held_is_freed_without_the_collector():
    alive: list[weakref.ref[Connection]] = []

    def failing() -> None:
        connection = Connection()
        alive.append(weakref.ref(connection))
        raise ConnectionResetError

    async def program() -> None:
        threads = set(threading.enumerate())
        with pytest.raises(ConnectionResetError) as caught:
            await in_thread(failing)
        for thread in set(threading.enumerate()) - threads:
            await asyncio.to_thread(thread.join)
        del caught

    gc.disable()
    try:
        asyncio.run(program())
        assert alive[0]() is None
    finally:
        gc.enable()
