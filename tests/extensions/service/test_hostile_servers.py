"""Servers with malformed answers, or other batches: they are asked again, or others are."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest
from shardwise.extensions.service.batches import decode_request, encode_batch
from shardwise.extensions.service.frames import (
    _PREFIX,
    Frame,
    Kind,
    Limits,
    encoded,
    read_frame,
    write,
)
from shardwise.extensions.service.tcp import TcpConnection
from tests.support.batch_servers import loader, serving

LIMITS = Limits(1 << 20, 1 << 20)
DATA = sw.wrap(list(range(64)))
Answer = Callable[[Frame], bytes]


class Sink:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.data = b""

    def send(self, buffers: Any) -> None:
        self.data += b"".join(bytes(each) for each in buffers)


def framed(kind: Kind, number: int, body: Any, arrays: Any = ()) -> bytes:
    sink = Sink()
    write(sink, kind, number, encoded(body, arrays))  # type: ignore[arg-type]
    return sink.data


def right(request: Frame) -> bytes:
    batch = encode_batch(BatchBuilder(DATA).build(decode_request(request)))
    sink = Sink()
    write(sink, Kind.BATCH, request.number, batch)  # type: ignore[arg-type]
    return sink.data


def changed(**entries: Any) -> Answer:
    """The right batch, but for some entries of its body."""

    def answer(request: Frame) -> bytes:
        frame = right(request)
        length = _PREFIX.unpack_from(frame)[3]
        document = json.loads(frame[_PREFIX.size : _PREFIX.size + length])
        document["body"].update(entries)
        return relabelled(frame, json.dumps(document).encode())

    return answer


def relabelled(frame: bytes, header: bytes) -> bytes:
    """A frame with another header before its payload."""
    magic, kind, number, length, reserved, payload = _PREFIX.unpack_from(frame)
    prefix = _PREFIX.pack(magic, kind, number, len(header), reserved, payload)
    return prefix + header + frame[_PREFIX.size + length :]


def table(*entries: Any) -> Answer:
    """A batch whose arrays have these dtypes and shapes, and take no bytes."""
    header = json.dumps({"arrays": entries, "body": {}}).encode()
    return lambda request: relabelled(framed(Kind.BATCH, request.number, None), header)


def other_rows(request: Frame) -> bytes:
    """The batch of the samples before those that were asked for."""
    asked = decode_request(request)
    other = BatchRequest(asked.epoch, asked.step, (asked.ids - 8) % 64)
    sink = Sink()
    write(sink, Kind.BATCH, request.number, encode_batch(BatchBuilder(DATA).build(other)))  # type: ignore[arg-type]
    return sink.data


def with_tensor(dtype: str, shape: list[int], size: int) -> Answer:
    data = {"dict": [["value", {"tensor": [dtype, shape, 0]}]]}
    body = {"data": data, "counts": [0] * 4, "rows": [0] * 3, "seconds": {}, "costs": [0, 0],
            "storage": {}, "chunks": [], "parts": []}  # fmt: skip
    return lambda request: framed(Kind.BATCH, request.number, body, [np.zeros(size, np.uint8)])


def error_of(name: Any, *args: Any, **attributes: Any) -> Answer:
    entry = {"name": name, "args": list(args), "attributes": attributes, "notes": []}
    return lambda request: framed(Kind.ERROR, request.number, {"error": entry, "cause": None})


MALFORMED: dict[str, Answer] = {
    "tensor view": with_tensor("float32", [4], 7),
    "tensor shape": with_tensor("uint8", [5, 9], 8),
    "tensor unknown sizes": with_tensor("complex128", [-1, -1], 64),
    "tensor of no dtype": with_tensor("onnx", [1], 1),
    "shape above any": table(["<i8", [0, 2**70]]),
    "shape of too much": table(["<i8", [0, 2**62, 2**62]]),
    "dtype that is code": table(["(2,", [1]]),
    "dtype of many": table(["i4," * 9_000, [1]]),
    "dtype above any": table(["|S9999999999999", [0]]),
    "deep json": lambda request: relabelled(framed(Kind.BATCH, request.number, 0), b"[" * 90_000),
    "no json": lambda request: relabelled(framed(Kind.BATCH, request.number, 0), b"\xff{"),
    "other rows": other_rows,
    "a number": changed(data=5),
    "no index": changed(data={"dict": [["value", [1] * 8]]}),
    "counts of text": changed(counts=["a", "b", "c", "d"]),
    "counts above any": changed(counts=[10**30, 0, 0, 0]),
    "counts that lie": changed(counts=[7, 1, 0, 0]),
    "counts below 0": changed(counts=[8, -5, 5, 0]),
    "seconds of text": changed(seconds={"read": "x"}),
    "seconds without end": changed(seconds={"read": float("nan")}),
    "stages that steer": changed(seconds={"\x1b[2J": 1.0}),
    "storage of dicts": changed(storage={"requests": {}}),
    "costs above any": changed(costs=[10**30, 0.0]),
    "other marks": changed(data={"dict": [["__index__", {"array": 0}], ["__valid__", 5]]}),
    "chunks of text": changed(chunks=[[0, "x"]]),
    "parts of none": changed(parts=[5]),
    "another number": lambda request: right(Frame(request.kind, request.number + 7, request.body,
                                                  request.arrays)),
    "another kind": lambda request: framed(Kind.HELLO, request.number, {}),
    "an error of a list": error_of(["x"]),
    "an error of objects": error_of("DataError", {"a": 1}),
}  # fmt: skip


class HostileServer:
    """Greets as a server does, and answers as it is told to."""

    def __init__(self, answer: Answer, *, num_credits: Any = 3) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._socket.getsockname()[1]}"
        self._answer, self._credits = answer, num_credits
        self.num_connections = 0

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection = TcpConnection(self._socket.accept()[0])
                self.num_connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: TcpConnection) -> None:
        with suppress(OSError, EOFError):
            read_frame(connection, LIMITS)
            challenge = {"nonce": "ab" * 32, "has_dataset": True}
            connection.send([framed(Kind.CHALLENGE, 0, challenge)])
            read_frame(connection, LIMITS)
            connection.send([framed(Kind.WELCOME, 0, {"credits": self._credits})])
            while True:
                connection.send([self._answer(read_frame(connection, LIMITS))])

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def hostile(answer: Answer, **options: Any) -> Iterator[HostileServer]:
    server = HostileServer(answer, **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


@pytest.fixture(autouse=True)
def dead_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread ends with an error."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(repr(args.exc_value)))
    yield
    assert not found


def values(service: Any, *, timeout: float | None = 60) -> list[int]:
    with loader(DATA, service, timeout=timeout) as found:
        return [n for batch in found for n in batch["value"].tolist()]


@pytest.mark.parametrize("name", MALFORMED)
def test_a_trainer_whose_only_server_sends_malformed_answers_ends_with_an_error(name: str) -> None:
    with hostile(MALFORMED[name]) as server:
        with pytest.raises(sw.ServiceError, match=f"{server.address}: 3 malformed answers"):
            values(sw.service(server.address), timeout=None)
        assert server.num_connections == 3, "it is asked again"


def test_a_server_that_sends_one_malformed_answer_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [MALFORMED["shape above any"]]

    def answer(request: Frame) -> bytes:
        return answers.pop()(request) if answers else right(request)

    with hostile(answer) as server:
        assert values(sw.service(server.address), timeout=None) == list(range(64))
    assert "sent a malformed answer, it is asked again: an invalid array" in caplog.text


def test_a_sound_server_beside_one_with_malformed_answers_makes_all_batches() -> None:
    with serving(DATA) as [beside], hostile(MALFORMED["other rows"]) as server:
        assert values(sw.service([server.address, beside.address])) == list(range(64))


@pytest.mark.parametrize("num_credits", [0, 10**30, -1, "3", None, 1.5, 65])
def test_a_welcome_for_any_number_of_requests_is_refused(num_credits: Any) -> None:
    with hostile(right, num_credits=num_credits) as server:
        with pytest.raises(sw.ServiceError, match="malformed answers"):
            values(sw.service(server.address), timeout=None)


def test_an_error_of_a_server_steers_no_terminal_and_has_declared_attributes_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for answer, kind, text in (
        (error_of("StorageError", "\x1b[31mHACK\x07"), sw.StorageError, r"\x1b[31mHACK\x07"),
        (error_of("DataError", "no", url=5, args="ab", with_traceback=1), sw.DataError, "no"),
        (error_of("DataError", reason="no", key="\x1b[2J"), sw.DataError, r"no (key '\\x1b[2J')"),
        (error_of("SystemExit", 3), RuntimeError, "SystemExit: 3"),
        (error_of("UnicodeDecodeError", "x"), RuntimeError, "UnicodeDecodeError: x"),
        (error_of("ExceptionGroup", "a", 5), RuntimeError, "ExceptionGroup: a, 5"),
    ):
        with hostile(answer) as server, pytest.raises(kind) as caught:
            values(sw.service(server.address))
        assert str(caught.value) == text
        assert caught.value.with_traceback(None) is caught.value
    assert "\x1b" not in caplog.text


def test_fields_that_a_server_counts_steer_no_terminal() -> None:
    with hostile(changed(missing={"\x1b[2J": 3})) as server:
        with loader(DATA, sw.service(server.address), timeout=60) as found:
            next(iter(found))
            assert found.stats()["missing"] == {r"\x1b[2J": 3}


def test_a_refusal_steers_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:

        def refuse() -> None:
            connection = TcpConnection(port.accept()[0])
            connection.send([framed(Kind.REFUSED, 0, {"reason": "\x1b]0;x\x07" + "a" * 9_000})])

        threading.Thread(target=refuse, daemon=True).start()
        with pytest.raises(sw.ServiceError) as caught:
            values(sw.service(f"tcp://127.0.0.1:{port.getsockname()[1]}"))
    assert "\x1b" not in f"{caught.value}{caplog.text}"
    assert len(str(caught.value)) < 5_000
