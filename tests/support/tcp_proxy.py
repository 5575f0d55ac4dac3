"""A TCP proxy that breaks connections in the middle of what the server sends; seeded.

For any protocol, SFTP included; `FaultProxy` knows HTTP and has more faults.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Self


class TcpProxy:
    """Passes connections of `host` on to a port of the loopback; a context manager.

    Attributes:
        port: where it listens.
        breaks: so many of the next connections break.
        most_bytes: they do so after up to that many bytes of the server's.
        num_broken: how many did.
    """

    def __init__(self, target: int, *, seed: int = 0, host: str = "127.0.0.1") -> None:
        self.port = 0
        self._host = host
        self.breaks = self.num_broken = 0
        self.most_bytes = 6000
        self._target = target
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        # What it cancels at its end would be in the logs of the next test.
        self._loop.set_exception_handler(lambda *_: None)
        self._open: set[asyncio.WriteTransport] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def drop(self) -> None:
        """Break all connections that are open now."""
        self._loop.call_soon_threadsafe(lambda: [each.abort() for each in list(self._open)])

    def _run(self) -> None:
        start = asyncio.start_server(self._serve, self._host, 0)
        server = self._loop.run_until_complete(start)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = None
        if self.breaks:
            self.breaks -= 1
            left = self._random.randrange(1, self.most_bytes)
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._open |= {writer.transport, back.transport}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, back, None))
                both.create_task(self._pass(there, writer, left))
        except* ConnectionError:
            pass  # one side is gone, and so is the other now
        finally:
            writer.transport.abort()
            back.transport.abort()
            self._open -= {writer.transport, back.transport}

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None
    ) -> None:
        while data := await reader.read(64 << 10):
            if left is not None and len(data) >= left:
                writer.write(data[:left])
                await writer.drain()
                self.num_broken += 1
                raise ConnectionError("broken on purpose")
            left = None if left is None else left - len(data)
            writer.write(data)
            await writer.drain()
        raise ConnectionError("ended")
