"""Connections of blocking calls."""

from __future__ import annotations

import asyncio
import gc
import io
import threading

import pytest

from shardwise.extensions.remote.requests.blocking_pool import BlockingPool


class Connection:
    """Knows whether it is alive, and whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        """Close it."""
        self.closed = True


def fail(connection: Connection) -> None:
    """A call that breaks its connection."""
    raise ConnectionResetError


def pool_of_connections() -> tuple[list[Connection], BlockingPool[Connection]]:
    """The connections that a pool has made, and the pool."""
    made: list[Connection] = []

    def make() -> Connection:
        made.append(Connection())
        return made[-1]

    return made, BlockingPool("a store", make, Connection.close)


def test_a_connection_whose_call_failed_is_closed_and_another_one_is_made():
    made, pool = pool_of_connections()

    async def program() -> None:
        await pool.call(id, timeout_s=60)
        with pytest.raises(ConnectionResetError):
            await pool.call(fail, timeout_s=60)
        assert [each.closed for each in made] == [True]
        await pool.call(id, timeout_s=60)
        assert [each.closed for each in made] == [True, False]

    asyncio.run(program())


def test_a_connection_whose_call_was_late_is_used_again():
    made, pool = pool_of_connections()

    async def program() -> None:
        # Of a new connection, and of one that was used before.
        for _ in range(2):
            go = threading.Event()
            with pytest.raises(TimeoutError):
                await pool.call(lambda _, go=go: go.wait(60), timeout_s=0.1)
            go.set()
            async with asyncio.timeout(60):
                while pool._num_stuck:
                    await asyncio.sleep(0.01)
            assert await pool.call(lambda each: each is made[0], timeout_s=60)
        assert [each.closed for each in made] == [False]

    asyncio.run(program())


def test_the_collector_never_frees_a_connection():
    closed_before: list[bool] = []

    class File:
        """As paramiko's: its destructor writes its buffer, which is an object of its own."""

        def __init__(self, buffer: io.BytesIO) -> None:
            self.buffer = buffer

        def __del__(self) -> None:
            closed_before.append(self.buffer.closed)

    async def program() -> None:
        # The collector takes older objects first.
        buffer = io.BytesIO()
        pool = BlockingPool("a store", lambda: File(buffer), lambda _: None)
        await pool.call(id, timeout_s=60)
        cycle: list[object] = [pool]
        cycle.append(cycle)

    gc.disable()
    try:
        asyncio.run(program())
        # Until its end the thread of the call refers to the pool.
        for thread in threading.enumerate():
            if thread.name == "shardwise-blocking":
                thread.join(60)
        gc.collect()
        assert closed_before == [False]
    finally:
        gc.enable()
