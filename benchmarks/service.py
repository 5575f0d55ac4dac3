"""Batch servers: CPU of a 9.6 MB batch against plain TCP of the same bytes, in one run.

The batch is 64 pictures of uint8 [3, 224, 224]. CPU seconds of both processes are counted, since
the machine may be busy. A server's batch comes from its cache, so that neither side decodes or
copies anything that the wire does not ask for.

- floor: a process sends the bytes for each request of 600 bytes, with `sendall`; the receiver fills
  one buffer that it keeps, with `recv_into`.
- service: a `BatchServer` and a `ServiceExecutor`, whose batches are let go of one by one.
- TLS: the same over `tls://`, with a certificate made by the command `openssl`.
- UCX: the same over `ucx://`, by shared memory; and by TCP, as between machines that have nothing
  else.

The time in the trainer's thread is its own CPU time a batch: fetching a batch that is ready, and
asking for the next one.

    python benchmarks/service.py --batches 100 --rounds 5
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import resource
import socket
import statistics
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest
from shardwise.extensions.service.executor import ServiceExecutor
from shardwise.extensions.service.server import BatchServer
from shardwise.extensions.service.tls import TlsFiles
from shardwise.extensions.service.token import make_token, read_token
from shardwise.extensions.service.transports import connect_to, listen

ROWS, SHAPE = 64, (3, 224, 224)
NUM_BYTES = ROWS * 3 * 224 * 224
REQUEST_BYTES = 600
OPENSSL = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=bench "
    "-addext subjectAltName=IP:127.0.0.1"
)


def data() -> sw.Dataset:
    return sw.wrap([np.full(SHAPE, 7, dtype=np.uint8)] * ROWS)


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def plain_server(pipe: Connection) -> None:
    """Send the bytes for each request, and tell the CPU when asked for it."""
    payload = np.full(NUM_BYTES, 7, dtype=np.uint8)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        sock, _ = listener.accept()
    large(sock)
    request = bytearray(REQUEST_BYTES)
    while True:
        got = sock.recv_into(request, 0, socket.MSG_WAITALL)
        if not got:
            break
        sock.sendall(payload)
        if pipe.poll(0):
            pipe.recv()
            pipe.send(cpu_s())


def large(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)


def batch_server(pipe: Connection, transport: str, token: bytes | None, cert: str | None) -> None:
    """Serve batches, and tell the CPU when asked for it."""
    tls = None if cert is None else TlsFiles(cert)
    listener = listen(transport, "127.0.0.1", 0, files=tls)
    server = BatchServer(listener, dataset=data(), token=token)
    server.start()
    pipe.send(server.address)
    while pipe.recv() is not None:
        pipe.send(cpu_s())
    server.close()


def floor(count: int) -> float:
    """CPU milliseconds a batch, of both ends, by plain TCP."""
    ours, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(target=plain_server, args=(theirs,), daemon=True)
    process.start()
    buffer = memoryview(bytearray(NUM_BYTES))
    with socket.create_connection(("127.0.0.1", ours.recv())) as sock:
        large(sock)

        def receive() -> None:
            sock.sendall(bytes(REQUEST_BYTES))
            done = 0
            while done < NUM_BYTES:
                done += sock.recv_into(buffer[done:])

        def theirs_s() -> float:
            ours.send(1)
            receive()
            value: float = ours.recv()
            return value

        for _ in range(5):
            receive()
        before = theirs_s() + cpu_s()
        for _ in range(count):
            receive()
        used = theirs_s() + cpu_s() - before
    process.join()
    return 1000 * used / (count + 1)


def service(count: int, transport: str) -> tuple[float, float]:
    """CPU milliseconds a batch, of both ends; and those of the trainer's thread."""
    with tempfile.TemporaryDirectory() as folder:
        token_file = cert = None
        if transport == "ucx":
            token_file = f"{folder}/token"
            make_token(token_file)
        if transport == "tls":
            cert = f"{folder}/cert"
            subprocess.run(
                [*OPENSSL.split(), "-keyout", f"{folder}/key", "-out", cert],
                check=True,
                capture_output=True,
            )
            with open(cert, "a") as file, open(f"{folder}/key") as key:
                file.write(key.read())
        return _service(count, transport, token_file, cert)


def _service(
    count: int, transport: str, token_file: str | None, cert: str | None
) -> tuple[float, float]:
    token = None if token_file is None else read_token(token_file)
    ours, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(
        target=batch_server,
        args=(theirs, "ucx" if transport == "ucx" else "tcp", token, cert),
        daemon=True,
    )
    process.start()
    address: str = ours.recv()
    builder = BatchBuilder(data())
    connect = connect_to((address,), files=cert and TlsFiles(ca=cert))
    executor = ServiceExecutor(builder, (address,), token_file=token_file, connect=connect)
    request = BatchRequest(0, 0, np.arange(ROWS, dtype=np.int64))
    batches = executor.run(request for _ in range(count + 20))

    def theirs_s() -> float:
        ours.send(1)
        value: float = ours.recv()
        return value

    batch: Any = None
    for _ in range(10):
        batch = next(batches)
    before, thread = theirs_s() + cpu_s(), time.thread_time()
    for _ in range(count):
        batch = next(batches)
    thread = time.thread_time() - thread
    used = theirs_s() + cpu_s() - before
    assert batch.data["value"].nbytes == NUM_BYTES
    batches.close()
    executor.close()
    ours.send(None)
    process.join()
    return 1000 * used / count, 1000 * thread / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    floors, services, threads = [], [], []
    encrypted, shared, between = [], [], []
    for _ in range(options.rounds):
        floors.append(floor(options.batches))
        cpu, thread = service(options.batches, "tcp")
        services.append(cpu)
        threads.append(thread)
        encrypted.append(service(options.batches, "tls")[0])
        shared.append(service(options.batches, "ucx")[0])
        os.environ["UCX_TLS"] = "tcp"
        between.append(service(options.batches, "ucx")[0])
        del os.environ["UCX_TLS"]
    ratios = [one / other for one, other in zip(services, floors, strict=True)]
    print("CPU of a 9.6 MB batch, both ends, ms: median (each round)")
    rows = {"plain TCP": floors, "service": services, "TLS": encrypted}
    rows |= {"UCX": shared, "UCX by TCP": between}
    for name, values in rows.items():
        rounds = ", ".join(f"{value:.2f}" for value in values)
        print(f"  {name:10} {statistics.median(values):6.2f}  ({rounds})")
    print(f"  ratio      {statistics.median(ratios):6.2f}")
    print(f"trainer's thread, CPU ms a batch: {statistics.median(threads):.3f}")


if __name__ == "__main__":
    main()
