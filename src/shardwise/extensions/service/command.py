"""`shardwise serve`: a server of batches, for trainers on other machines."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shardwise.cli.options import common_options, complete_files
from shardwise.cli.output import finish, write_line
from shardwise.cli.python_names import is_python, open_python

# Interval at which it looks whether its job has gone.
_LOOK_S = 0.1


def _file_option(name: str, text: str) -> Callable[..., Any]:
    path = click.Path(exists=True, dir_okay=False)
    return click.option(name, metavar="FILE", type=path, help=text)


@click.command()
@click.argument(
    "dataset", required=False, metavar="[MODULE:DATASET]", shell_complete=complete_files
)
@click.option("--port", type=click.IntRange(0, 65_535), required=True, help="0 for any free port.")
@click.option("--host", default="127.0.0.1", help="Interface to listen on; 0.0.0.0 for all.")
@click.option(
    "--transport",
    type=click.Choice(["tcp", "ucx"]),
    default="tcp",
    help="ucx: shared memory and RDMA, under a token and on closed networks only.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Serve only clients that have this token; a file that is not there is made.",
)
@_file_option(
    "--tls-cert", "Encrypt, with this certificate (PEM, with those between it and its authority)."
)
@_file_option("--tls-key", "The certificate's private key, where its file does not hold it.")
@_file_option("--tls-ca", "Serve only clients with a certificate that these authorities signed.")
@click.option(
    "--num-threads",
    type=click.IntRange(1, 1024),
    help="Threads that build batches; one for each core if not given.",
)
@click.option(
    "--cache-mb",
    type=click.IntRange(0, 1 << 20),
    default=256,
    help="Megabytes of made batches that are kept for other trainers of the same plan.",
)
@click.option(
    "--job",
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    help="End this long after the last client has gone, or after the start if none comes.",
)
@common_options
def serve(
    dataset: str | None,
    port: int,
    host: str,
    transport: str,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    num_threads: int | None,
    cache_mb: int,
    job: float | None,
) -> None:
    """Build batches for trainers that have executor=sw.service("tcp://HOST:PORT").

    MODULE:DATASET names a dataset, or a function that returns one, as `package.data:train` or
    `data.py:train`. Without it the dataset comes from the client, under a token. Prints its address
    when it is ready; ends on SIGTERM and Ctrl-C. Exit code 1 if the port is taken or the data can't
    be opened.
    """
    from shardwise.base.parallel import usable_cores
    from shardwise.extensions.service.addresses import is_loopback
    from shardwise.extensions.service.server import BatchServer
    from shardwise.extensions.service.tls import TlsFiles
    from shardwise.extensions.service.token import make_token, read_token
    from shardwise.extensions.service.transports import listen

    if dataset is None and token_file is None:
        raise click.UsageError(
            "name MODULE:DATASET, or give --token-file to take datasets from clients"
        )
    if dataset is not None and not is_python(dataset):
        raise click.UsageError(f"{dataset!r}: name a dataset as module:name or file.py:name")
    if not is_loopback(host) and token_file is None:
        raise click.UsageError(
            f"--host {host} can be reached from other machines: give --token-file FILE, and the "
            "same file to sw.service(token_file=...)"
        )
    if transport == "ucx" and token_file is None:
        raise click.UsageError(
            "--transport ucx trusts its clients: give --token-file FILE, and the same file to "
            "sw.service(token_file=...)"
        )
    if tls_cert is None and (tls_key is not None or tls_ca is not None):
        raise click.UsageError("--tls-key and --tls-ca go with --tls-cert FILE")
    if transport == "ucx" and tls_cert is not None:
        raise click.UsageError("--tls-cert with --transport ucx: UCX does not encrypt; use tcp")
    tls = None if tls_cert is None else TlsFiles(tls_cert, tls_key, tls_ca)
    ended = threading.Event()

    def end(*_: Any) -> None:
        ended.set()

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGINT)}
    data = None if dataset is None else open_python(dataset)
    token = None
    if token_file is not None:
        make_token(Path(token_file))
        token = read_token(token_file)
    server = BatchServer(
        listen(transport, host, port, files=tls),
        dataset=data,
        token=token,
        num_threads=num_threads or usable_cores(num_ranks=1),
        cache_bytes=cache_mb << 20,
    )
    server.start()
    finish({"address": server.address}, _show)
    # At once, also into a pipe: the program that started it waits for this line.
    sys.stdout.flush()
    try:
        while not ended.wait(_LOOK_S if job is not None else None):
            if job is not None and server.idle_s >= job:
                break
    finally:
        server.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(document: dict[str, str]) -> None:
    write_line(f"ready: {document['address']}")
