"""The greeting: a client and a server tell who they are before any batch is asked for.

    client  HELLO      a random number
    server  CHALLENGE  its own, and with a token the proof that it has it
    client  PROOF      the client's proof, its version word, and the digest of its pickled builder;
                       with a token its endpoint of the transport, which the proof covers
    server  WELCOME    how many requests may be under way; or that it needs the pickle
    client  PICKLE     the builder by cloudpickle, vouched for with the token
    server  WELCOME    or REFUSED, with the reason

The pickle is taken only with a token that both have, and at most once a server. Frames are small
before the proof, so that a client without the token can't make a server set memory aside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from shardwise.errors import ServiceError
from shardwise.serving.frames import (
    FrameError,
    Kind,
    Limits,
    OtherProtocolError,
    encoded,
    read_frame,
    write,
)
from shardwise.serving.token import is_proof, new_nonce, proof
from shardwise.serving.transport import Connection
from shardwise.serving.version import PYTHON, VersionWord

_Chosen = TypeVar("_Chosen")

_PROTOCOL = 2
_SMALL = Limits(header=64 << 10, payload=0)
# Hex digits of what a transport needs: half of a small frame.
_MAX_ENDPOINT = 40 << 10
# A dataset with a column of 10^8 numbers in it.
_PICKLE = Limits(header=64 << 10, payload=1 << 30)


class Refusal(Exception):  # noqa: N818 - no fault of the server's
    """Why a server serves a client no batches; its text is sent."""


@dataclass(frozen=True, slots=True)
class ClientSide:
    """What a client brings.

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
    """What a client asks of a server, once both know each other; see also `ClientSide`.

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

    Returns:
        How many requests may be under way.

    Raises:
        ServiceError: it serves other data or code, or has another token, and the message has both;
            or it is no batch server.
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
    if type(num_credits) is not int or num_credits < 1:
        raise FrameError("a welcome without a number of requests")
    return num_credits


def admit(
    connection: Connection,
    *,
    token: bytes | None,
    has_dataset: bool,
    num_credits: int,
    choose: Callable[[Admission], _Chosen],
) -> _Chosen:
    """Greet a client as a server.

    Args:
        connection: to the client.
        token: the job's token, or None.
        has_dataset: whether the server was started with a dataset.
        num_credits: how many requests may be under way.
        choose: finds what builds the client's batches.

    Returns:
        What `choose` found.

    Raises:
        Refusal: the client was refused, and told so.
        FrameError: it is no client.
        EOFError, OSError: see `Connection`.
    """
    try:
        chosen = choose(_admission(connection, token, has_dataset=has_dataset))
    except Refusal as refusal:
        _say(connection, Kind.REFUSED, {"reason": str(refusal)})
        raise
    _say(connection, Kind.WELCOME, {"credits": num_credits})
    return chosen


def _admission(connection: Connection, token: bytes | None, *, has_dataset: bool) -> Admission:
    """What a client asks, once it has proven the token."""
    try:
        hello = _hear(connection, Kind.HELLO)
    except OtherProtocolError as error:
        if not error.client_error:
            raise
        raise Refusal(error.client_error) from None
    if hello.get("protocol") != _PROTOCOL:
        raise Refusal(f"the server speaks protocol {_PROTOCOL}: use one release everywhere")
    nonce, other = new_nonce(), _text(hello, "nonce")
    challenge: dict[str, Any] = {"nonce": nonce, "has_dataset": has_dataset}
    if token is not None:
        challenge["proof"] = proof(token, "server", other, nonce)
    _say(connection, Kind.CHALLENGE, challenge)
    said = _hear(connection, Kind.PROOF)
    if token is not None:
        endpoint = _text(said, "endpoint", most=_MAX_ENDPOINT)
        if not is_proof(said.get("proof"), token, "client", nonce, other, endpoint):
            raise Refusal("the client has another token than the server")
        try:
            connection.set_remote_endpoint(bytes.fromhex(endpoint))
        except (OSError, ValueError) as error:
            raise Refusal(f"the server can't use the client's endpoint: {error}") from None
    digest = said.get("digest")
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

    try:
        word = VersionWord(**said["word"])
        options = dict(said["options"])
    except (KeyError, TypeError, ValueError):
        raise FrameError("a greeting without a version word") from None
    return Admission(word, options, digest, bool(said.get("needs_pickle")), python, ask_pickle)


def _say(connection: Connection, kind: Kind, body: dict[str, Any]) -> None:
    write(connection, kind, 0, encoded(body))


def _hear(connection: Connection, kind: Kind) -> dict[str, Any]:
    frame = read_frame(connection, _SMALL)
    body = frame.body
    if not isinstance(body, dict):
        raise FrameError("a greeting that is none")
    if frame.kind == Kind.REFUSED:
        raise ServiceError(str(body.get("reason")))
    if frame.kind != kind:
        raise FrameError(f"{frame.kind.name} in place of {kind.name}")
    return body


def _text(body: dict[str, Any], name: str, *, most: int = 128) -> str:
    value = body.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise FrameError(f"a greeting without {name}")
    return value
