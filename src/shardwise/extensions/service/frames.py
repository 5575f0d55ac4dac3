"""Frames: a prefix of fixed size, a JSON header, and arrays as they lie in memory.

    prefix   32 bytes: magic, kind, number, bytes of the header, bytes of the payload
    header   JSON: {"arrays": [[dtype, shape], ...], "body": ...}
    payload  the arrays, C order, each padded to a multiple of 64 bytes

A receiver checks every length before it sets memory aside, and the payload is received in one piece
into the memory that the batch keeps. Only a dataset is sent as a pickle, in a separate kind of
frame. Malformed input raises `FrameError`, and nothing else.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import ServiceError
from shardwise.base.shown import escaped
from shardwise.engine.processes.shared_memory import aligned
from shardwise.extensions.service.transport import Connection

_MAGIC = b"SWB1"
_PREFIX = struct.Struct("<4sB3xQIIQ")
_PADDING = bytes(64)
# A segment of `ucx://`, see `ucx.py`: 16 bytes; the last 8 are the length of what follows.
SEGMENT_MAGIC = b"SWU1"
# A TLS server's alert, 7 bytes, that it did not get TLS. Source: RFC 8446, 5.1.
_TLS_ALERT = b"\x15\x03"
# A TLS client's first record: 5 bytes, the last two with its length, and then its content.
_TLS_HANDSHAKE = b"\x16\x03"
# Numbers, text and times; no objects, no records. Texts of no characters take no bytes: any number
# of them would fit. numpy evaluates any other name, so it gets no other.
_DTYPE = re.compile(r"[<>|=](?:b1|[iufcSU][1-9]\d{0,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)")
_MAX_DIMENSIONS = 32
# The longest quotation of a peer's bytes in an error.
_MAX_QUOTED = 500


class FrameError(Exception):
    """The other end does not speak the protocol; its text is quoted escaped and cut."""

    def __init__(self, text: str) -> None:
        super().__init__(escaped(text[:_MAX_QUOTED]))


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Raise `FrameError` for whatever the block, which decodes foreign bytes, raises."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - json, numpy and torch raise any type
        raise FrameError(f"an invalid {what}: {type(error).__name__}: {error}") from None


class OtherProtocolError(FrameError):
    """The first bytes are of another protocol; `client_error` is for a client of that, or ""."""

    def __init__(self, start: bytes) -> None:
        why = (
            "this is no batch server: it does not begin as one does: is it another program's port?"
        )
        self.client_error = ""
        if start.startswith(_TLS_HANDSHAKE):
            self.client_error = "it speaks TLS, and this server was started without --tls-cert"
        elif start.startswith(SEGMENT_MAGIC):
            why = "the server was started with --transport ucx: name it as ucx://host:port"
            self.client_error = "it speaks UCX, and this server was started without --transport ucx"
        elif start.startswith(_MAGIC):
            why = "the server was started without --transport ucx: name it as tcp://host:port"
            self.client_error = "it speaks TCP, and this server was started with --transport ucx"
        super().__init__(why)


def ended_early(start: bytes, magic: bytes) -> Exception | None:
    """The reason why the other end hung up early, if its first bytes show it."""
    if start.startswith(_TLS_ALERT):
        return ServiceError("the server speaks TLS: name it as tls://host:port")
    # A short answer that ends is another program's, too.
    if magic.startswith(start[: len(magic)].rstrip(b"\0")):
        return None
    return OtherProtocolError(start)


class Kind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    PICKLE = 4
    WELCOME = 5
    REFUSED = 6
    REQUEST = 7
    BATCH = 8
    ERROR = 9


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest header and payload that a receiver takes, in bytes."""

    header: int
    payload: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """A frame's JSON header and `num_payload` bytes of buffers, to send any number of times."""

    header: bytes
    buffers: tuple[Any, ...]
    num_payload: int

    @property
    def num_bytes(self) -> int:
        return len(self.header) + self.num_payload


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it was received: its body, and arrays over the memory of its payload."""

    kind: Kind
    number: int
    body: Any
    arrays: list[NDArray[Any]]


def encoded(body: Any, arrays: Sequence[NDArray[Any]] = ()) -> Encoded:
    """Encode a body of JSON and its arrays, which must be contiguous."""
    table = [[array.dtype.str, array.shape] for array in arrays]
    header = json.dumps({"arrays": table, "body": body}, separators=(",", ":")).encode()
    buffers: list[Any] = []
    num_payload = 0
    for array in arrays:
        if array.nbytes:
            size = aligned(array.nbytes)
            # numpy has no buffers of times; as bytes every array has one.
            buffers.append(array.reshape(-1).view(np.uint8).data)
            if size > array.nbytes:
                buffers.append(_PADDING[: size - array.nbytes])
            num_payload += size
    return Encoded(header, tuple(buffers), num_payload)


def write(connection: Connection, kind: Kind, number: int, frame: Encoded) -> None:
    """Send a frame."""
    prefix = _PREFIX.pack(_MAGIC, kind, number, len(frame.header), 0, frame.num_payload)
    connection.send([prefix + frame.header, *frame.buffers])


def _fresh(size: int) -> NDArray[np.uint8]:
    return np.empty(size, dtype=np.uint8)


def read_frame(
    connection: Connection,
    limits: Limits,
    memory: Callable[[int], NDArray[np.uint8]] = _fresh,
) -> Frame:
    """Receive a frame.

    Raises:
        OtherProtocolError: the first bytes are not a frame's.
        FrameError: it is malformed, or longer than allowed.
        ServiceError: the other end speaks TLS, and this one does not.
        EOFError, OSError: see `Connection.receive_into`.
    """
    steps = frame_steps(limits, memory)
    try:
        buffer = next(steps)
        while True:
            try:
                connection.receive_into(buffer)
            except (EOFError, OSError) as error:
                buffer = steps.throw(error)
            else:
                buffer = next(steps)
    except StopIteration as end:
        frame: Frame = end.value
        return frame


def frame_steps(
    limits: Limits, memory: Callable[[int], NDArray[np.uint8]] = _fresh
) -> Generator[memoryview, None, Frame]:
    """Receive a frame step by step: yields the buffer to fill next; see `read_frame`."""
    prefix = bytearray(_PREFIX.size)
    try:
        yield memoryview(prefix)
    except (EOFError, OSError):
        why = ended_early(bytes(prefix), _MAGIC)
        if why is not None:
            raise why from None
        raise
    magic, kind, number, num_header, reserved, num_payload = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise OtherProtocolError(bytes(prefix))
    if reserved or kind not in tuple(Kind):
        raise FrameError(f"a frame of an unknown kind ({kind}, {reserved})")
    if num_header > limits.header or num_payload > limits.payload:
        raise FrameError(
            f"a frame of {num_header} and {num_payload} bytes, of at most {limits.header} and "
            f"{limits.payload}"
        )
    header = bytearray(num_header)
    yield memoryview(header)
    with decoding("header"):
        document = json.loads(header)
        layouts = [_layout(*entry) for entry in document["arrays"]]
        body = document["body"]
        sizes = [aligned(math.prod(shape) * dtype.itemsize) for dtype, shape in layouts]
    if sum(sizes) != num_payload:
        raise FrameError(f"arrays of {sum(sizes)} bytes in a payload of {num_payload}")
    try:
        payload = memory(num_payload)
    except MemoryError:
        raise FrameError(f"a payload of {num_payload} bytes: there is no memory for it") from None
    yield payload.data
    arrays = []
    start = 0
    with decoding("array"):
        for (dtype, shape), size in zip(layouts, sizes, strict=True):
            num_bytes = math.prod(shape) * dtype.itemsize
            arrays.append(payload[start : start + num_bytes].view(dtype).reshape(shape))
            start += size
    return Frame(Kind(kind), number, body, arrays)


def _layout(name: str, shape: list[int]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if not _DTYPE.fullmatch(name) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(name)
    dtype = np.dtype(name)
    if dtype.str != name:
        raise ValueError(name)
    return dtype, shape_of(shape)


def shape_of(sizes: list[Any]) -> tuple[int, ...]:
    """A shape as another end wrote it; ValueError if it is not a shape."""
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(sizes)
    return tuple(sizes)
