"""Malformed UCX addresses: UCX gets only those of holders of the token, and the server serves on.

UCX may end the process that makes an endpoint of bytes that no worker wrote. So a test can't give
it such bytes: with the token go those that the server itself refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest
from shardwise.extensions.service import ucx
from shardwise.extensions.service.batches import encode_request
from shardwise.extensions.service.frames import FrameError, Kind, Limits, encoded, read_frame, write
from shardwise.extensions.service.server import BatchServer
from shardwise.extensions.service.token import new_nonce, proof, read_token
from shardwise.extensions.service.transports import listen
from shardwise.extensions.service.ucx_worker import UcxWorker
from shardwise.extensions.service.version import PYTHON, VersionWord, builder_options
from tests.support.batch_servers import BatchServers, check_epoch, module_of, write_dataset
from tests.support.transports import token_for, use_transport

LIMITS = Limits(1 << 20, 1 << 20)


@pytest.fixture(params=["ucx", "ucx-between-machines"])
def servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[BatchServers]:
    use_transport(request.param, monkeypatch)
    path = write_dataset(tmp_path, size=24, side=64)
    with BatchServers(
        path, 1, "--transport", "ucx", token_file=token_for("ucx", tmp_path)
    ) as started:
        yield started


def outcome(
    servers: BatchServers,
    folder: Path,
    *,
    token: bytes | None,
    endpoint: bytes | None = None,
    vouches_for: bytes | None = None,
) -> str:
    """What becomes of a client that gives `endpoint`, or its own, and asks for a batch of 200 kB.

    Its proof covers `vouches_for`, by default what it gives.
    """
    builder = BatchBuilder(module_of(folder / "served.py").dataset())
    with closing(ucx.connect(servers.addresses[0], timeout_s=60)) as connection:
        nonce = new_nonce()
        given = connection.local_endpoint if endpoint is None else endpoint
        write(connection, Kind.HELLO, 0, encoded({"protocol": 2, "nonce": nonce}))
        other = read_frame(connection, LIMITS).body["nonce"]
        vouched = (given if vouches_for is None else vouches_for).hex()
        body = {
            "proof": token and proof(token, "client", other, nonce, vouched),
            "endpoint": given.hex(),
            "word": asdict(VersionWord.of(builder.dataset)),
            "options": builder_options(builder),
            "digest": None,
            "needs_pickle": False,
            "python": PYTHON,
        }
        try:
            write(connection, Kind.PROOF, 0, encoded(body))
            frame = read_frame(connection, LIMITS)
            if frame.kind == Kind.REFUSED:
                return str(frame.body["reason"])
            request = BatchRequest(0, 0, np.arange(6, dtype=np.int64))
            write(connection, Kind.REQUEST, 0, encode_request(request))
            return read_frame(connection, LIMITS).kind.name
        except (FrameError, EOFError, OSError):
            return "hung up"


# With the token, the server refuses these before UCX sees them.
REFUSED: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda endpoint: b"",
    "a few bytes": lambda endpoint: endpoint[:12],
    "too long": lambda endpoint: endpoint + bytes(17 << 10),
    "another version": lambda endpoint: endpoint[:8] + bytes([endpoint[8] ^ 5]) + endpoint[9:],
}
MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    **REFUSED,
    "half": lambda endpoint: endpoint[: len(endpoint) // 2],
    "noise": lambda endpoint: endpoint[:8] + bytes(each ^ 0x5A for each in endpoint[8:]),
    "zeros": lambda endpoint: endpoint[:8] + bytes(200),
}


def test_a_server_gives_ucx_no_address_that_no_holder_of_the_token_wrote(
    servers: BatchServers, tmp_path: Path
) -> None:
    assert servers.token_file is not None
    token = read_token(servers.token_file)
    data = module_of(tmp_path / "served.py").dataset()
    assert outcome(servers, tmp_path, token=token) == "BATCH"
    with closing(UcxWorker()) as worker:
        real = bytes(8) + worker.address
    for name, forge in MALFORMED.items():
        forged = forge(real)
        for stranger in (None, b"another token of 32 bytes or more"):
            reason = outcome(servers, tmp_path, token=stranger, endpoint=forged)
            assert "another token" in reason, name
        # Changed on the way: the proof is of what the client wrote.
        changed = outcome(servers, tmp_path, token=token, endpoint=forged, vouches_for=real)
        assert "another token" in changed, name
        assert servers.process(0).poll() is None, name
    for name, forge in REFUSED.items():
        vouched = outcome(servers, tmp_path, token=token, endpoint=forge(real))
        assert ("hung up" if name == "another version" else "a UCX address of") in vouched, name
        assert servers.process(0).poll() is None, name
    service = sw.service(servers.addresses, token_file=servers.token_file)
    assert check_epoch(data, service, batch_size=6)["made_here"] == 0
    assert servers.process(0).poll() is None


def test_without_a_token_neither_end_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_transport("ucx", monkeypatch)
    listener = listen("ucx", "127.0.0.1", 0)
    with closing(listener), pytest.raises(ValueError, match="needs a token"):
        BatchServer(listener, dataset=sw.wrap([1, 2]))
    with pytest.raises(ValueError, match="'ucx://a:1' without token_file="):
        sw.service("tcp://a:1,ucx://a:1")
