"""The greeting: a client and a server identify themselves before any batch is requested.

    client  HELLO      a random number
    server  CHALLENGE  its own, and with a token the proof that it has it
    client  PROOF      the client's proof, its version word, and the digest of its pickled builder;
                       with a token its endpoint of the transport, which the proof covers
    server  WELCOME    how many requests may be under way; or that it needs the pickle
    client  PICKLE     the builder by cloudpickle, vouched for with the token
    server  WELCOME    or REFUSED, with the reason

The pickle is taken only with a token that both have, and at most once a server. Frames are small
before the proof, so that a client without the token can't make a server set memory aside; up to
there a server never waits for one client, see `reception.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from shardwise.base.errors import ServiceError
from shardwise.base.shown import escaped
from shardwise.extensions.service.frames import (
    Frame,
    FrameError,
    Kind,
    Limits,
    OtherProtocolError,
    encoded,
    frame_steps,
    read_frame,
    write,
)
from shardwise.extensions.service.token import is_proof, new_nonce, proof
from shardwise.extensions.service.transport import Connection
from shardwise.extensions.service.version import PYTHON, VersionWord

_PROTOCOL = 2
_SMALL = Limits(header=64 << 10, payload=0)
# Hex digits of what a transport needs: half of a small frame.
_MAX_ENDPOINT = 40 << 10
# A dataset with a column of 10^8 numbers in it.
_PICKLE = Limits(header=64 << 10, payload=1 << 30)
# Requests under way on one connection: as many as the server's threads, and two that wait.
MAX_CREDITS = 64
# The longest reason for a refusal that the other end wrote.
_MAX_REASON = 4_000


class Refusal(Exception):  # noqa: N818 - no fault of the server's
    """A server's refusal to serve a client; its text, which may quote the client, is sent."""

    def __init__(self, text: str) -> None:
        super().__init__(escaped(text))


@dataclass(frozen=True, slots=True)
class ClientSide:
    """The client's side of a greeting.

    Attributes:
        word: its version word.
        options: of its batches, see `builder_options`.
        pickled: gives its builder by cloudpickle; called where there is a token.
        needs_pickle: no server has its builder already: it has a collate of the user's.
        token: the job's token, or None.
    """

    word: VersionWord
    options: dict[str, Any]
    pickled: Callable[[], bytes]
    needs_pickle: bool
    token: bytes | None


@dataclass(frozen=True, slots=True)
class Admission:
    """A client's request to a server, once both know each other; see also `ClientSide`.

    Attributes:
        digest: of its pickled builder; None without a token.
        python: the minor version that it runs, such as "3.12".
        ask_pickle: gets the pickle from the client.
    """

    word: VersionWord
    options: dict[str, Any]
    digest: str | None
    needs_pickle: bool
    python: str
    ask_pickle: Callable[[], bytes]


def greet(connection: Connection, side: ClientSide) -> int:
    """Greet a server as a client.

    Raises:
        ServiceError: it serves other data or code, or has another token, and the message has both;
            or it is not a batch server.
        FrameError: it does not answer as a batch server should.
        EOFError, OSError: see `Connection`.
    """
    nonce, token = new_nonce(), side.token
    _say(connection, Kind.HELLO, {"protocol": _PROTOCOL, "nonce": nonce})
    try:
        challenge = _hear(connection, Kind.CHALLENGE)
    except OtherProtocolError as error:
        raise ServiceError(str(error)) from None
    other = _text(challenge, "nonce")
    mine = digest = None
    data = b""
    endpoint = ""
    if token is not None:
        if challenge.get("proof") is None:
            raise ServiceError(
                "the server has no token: start it with --token-file, or leave out token_file="
            )
        if not is_proof(challenge["proof"], token, "server", nonce, other):
            raise ServiceError("the server has another token than token_file= holds")
        endpoint = connection.local_endpoint.hex()
        mine = proof(token, "client", other, nonce, endpoint)
        if side.needs_pickle or not challenge.get("has_dataset"):
            data = side.pickled()
            digest = hashlib.sha256(data).hexdigest()
    elif challenge.get("proof") is not None:
        raise ServiceError("the server asks for a token: give its file as token_file=")
    body = {
        "proof": mine,
        "endpoint": endpoint,
        "word": asdict(side.word),
        "options": side.options,
        "digest": digest,
        "needs_pickle": side.needs_pickle,
        "python": PYTHON,
    }
    _say(connection, Kind.PROOF, body)
    welcome = _hear(connection, Kind.WELCOME)
    if welcome.get("needs_pickle"):
        if token is None or digest is None:
            raise FrameError("a server that asks for a pickle without a reason")
        vouched = proof(token, "pickle", other, nonce, digest)
        frame = encoded({"proof": vouched}, [np.frombuffer(data, dtype=np.uint8)])
        write(connection, Kind.PICKLE, 0, frame)
        welcome = _hear(connection, Kind.WELCOME)
    num_credits = welcome.get("credits")
    if type(num_credits) is not int or not 1 <= num_credits <= MAX_CREDITS:
        raise FrameError(f"a welcome for a number of requests that is not in 1 to {MAX_CREDITS}")
    return num_credits


def greeting_steps(
    connection: Connection, token: bytes | None, *, has_dataset: bool
) -> Generator[memoryview, None, Admission]:
    """Greet a client as a server, up to its proof; yields the buffer to fill next.

    Returns the client's request. Raises Refusal, which `refuse` sends to the client, FrameError if
    the peer is not a client, or OSError. All it sends fits into the kernel's buffers.
    """
    hello = yield from _hearing(Kind.HELLO)
    if hello.get("protocol") != _PROTOCOL:
        raise Refusal(f"the server speaks protocol {_PROTOCOL}: use one release everywhere")
    nonce, other = new_nonce(), _text(hello, "nonce")
    challenge: dict[str, Any] = {"nonce": nonce, "has_dataset": has_dataset}
    if token is not None:
        challenge["proof"] = proof(token, "server", other, nonce)
    _say(connection, Kind.CHALLENGE, challenge)
    said = yield from _hearing(Kind.PROOF)
    if token is not None:
        endpoint = _text(said, "endpoint", most=_MAX_ENDPOINT)
        if not is_proof(said.get("proof"), token, "client", nonce, other, endpoint):
            raise Refusal("the client has another token than the server")
        try:
            connection.set_remote_endpoint(bytes.fromhex(endpoint))
        except (OSError, ValueError) as error:
            raise Refusal(f"the server can't use the client's endpoint: {error}") from None
    digest = None if said.get("digest") is None else _text(said, "digest")
    python = _text(said, "python", most=16)

    def ask_pickle() -> bytes:
        if token is None or digest is None:
            raise Refusal(
                "the server needs the dataset from its client, and takes it under a token only: "
                "start it with --token-file, and give that file to sw.service(token_file=...)"
            )
        if python != PYTHON:
            raise Refusal(
                f"the server runs Python {PYTHON}, the client {python}: code travels between "
                "equal versions only"
            )
        _say(connection, Kind.WELCOME, {"needs_pickle": True})
        frame = read_frame(connection, _PICKLE)
        data = b"".join(array.tobytes() for array in frame.arrays)
        given = frame.body.get("proof") if isinstance(frame.body, dict) else None
        is_vouched = is_proof(given, token, "pickle", nonce, other, digest)
        if (
            frame.kind != Kind.PICKLE
            or not is_vouched
            or hashlib.sha256(data).hexdigest() != digest
        ):
            raise Refusal("the client does not vouch for its pickle with the token")
        return data

    word, options = said.get("word"), said.get("options")
    if not isinstance(word, dict) or not isinstance(options, dict):
        raise FrameError("a greeting without a version word and options")
    parts = [_text(word, each.name, most=1024) for each in fields(VersionWord)]
    needs_pickle = bool(said.get("needs_pickle"))
    return Admission(VersionWord(*parts), options, digest, needs_pickle, python, ask_pickle)


def refuse(connection: Connection, refusal: Refusal) -> None:
    """Send a client the reason for its refusal."""
    _say(connection, Kind.REFUSED, {"reason": str(refusal)})


def welcome(connection: Connection, num_credits: int) -> None:
    """Send a client the number of requests that may be under way."""
    _say(connection, Kind.WELCOME, {"credits": num_credits})


def _say(connection: Connection, kind: Kind, body: dict[str, Any]) -> None:
    write(connection, kind, 0, encoded(body))


def _hear(connection: Connection, kind: Kind) -> dict[str, Any]:
    frame = read_frame(connection, _SMALL)
    if frame.kind == Kind.REFUSED and isinstance(frame.body, dict):
        raise ServiceError(escaped(str(frame.body.get("reason"))[:_MAX_REASON]))
    return _body(frame, kind)


def _hearing(kind: Kind) -> Generator[memoryview, None, dict[str, Any]]:
    """Receive a client's message; yields the buffer to fill next."""
    return _body((yield from frame_steps(_SMALL)), kind)


def _body(frame: Frame, kind: Kind) -> dict[str, Any]:
    body = frame.body
    if not isinstance(body, dict):
        raise FrameError("a greeting that is not a JSON object")
    if frame.kind != kind:
        raise FrameError(f"{frame.kind.name} in place of {kind.name}")
    return body


def _text(body: dict[str, Any], name: str, *, most: int = 128) -> str:
    value = body.get(name)
    # Lone surrogates can't be encoded, as a proof is.
    if not isinstance(value, str) or len(value) > most or re.search("[\ud800-\udfff]", value):
        raise FrameError(f"a greeting without {name}")
    return value
