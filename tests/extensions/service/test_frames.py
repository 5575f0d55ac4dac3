"""Frames and values: whatever goes in comes out, and whatever else comes in is a FrameError."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import Batch, BatchRequest
from shardwise.extensions.service.batches import (
    check_batch,
    decode_batch,
    decode_request,
    encode_batch,
    encode_request,
)
from shardwise.extensions.service.error_frames import decode_error, encode_error
from shardwise.extensions.service.frames import Frame, FrameError, Kind, Limits, read_frame, write
from shardwise.testing import assert_batches_equal
from tests.support.properties import examples

PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary(max_size=5)
)  # fmt: skip
ARRAYS = npst.arrays(
    st.sampled_from(["<f4", ">i2", "|b1", "<U3", "<M8[s]", "<c16", "|u1"]),
    npst.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=3),
)
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
LIMITS = Limits(1 << 20, 1 << 20)


class Pipe:
    """A connection to itself."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def send(self, buffers: Sequence[Any]) -> None:
        for each in buffers:
            self.data += bytes(each)

    def receive_into(self, buffer: memoryview) -> None:
        if len(self.data) < buffer.nbytes:
            raise EOFError
        buffer[:] = bytes(self.data[: buffer.nbytes])
        del self.data[: buffer.nbytes]


def passed(kind: Kind, encoded: Any) -> Frame:
    pipe = Pipe()
    write(pipe, kind, 7, encoded)
    frame = read_frame(pipe, LIMITS)
    assert (frame.kind, frame.number, pipe.data) == (kind, 7, b"")
    return frame


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_a_batch_comes_back_as_it_was(data: dict[str, Any]) -> None:
    batch = decode_batch(passed(Kind.BATCH, encode_batch(Batch(data, num_rows=3, num_skipped=1))))
    assert_batches_equal(data, batch.data)
    assert (batch.num_rows, batch.num_skipped) == (3, 1)


@given(st.lists(st.integers(0, 2**62), max_size=9), st.booleans())
def test_a_request_comes_back_as_it_was(ids: list[int], is_padded: bool) -> None:
    array = np.array(ids, dtype=np.int64)
    valid = array % 2 == 0 if is_padded else None
    request = decode_request(
        passed(Kind.REQUEST, encode_request(BatchRequest(3, 4, array, valid, (len(ids),))))
    )
    assert (request.epoch, request.step, request.sizes) == (3, 4, (len(ids),))
    assert request.ids.tolist() == ids
    assert valid is None or request.valid.tolist() == valid.tolist()


def test_a_batch_lies_in_the_memory_that_it_was_received_into() -> None:
    memory: list[Any] = []

    def take(size: int) -> Any:
        memory.append(np.empty(size, dtype=np.uint8))
        return memory[-1]

    pipe = Pipe()
    data = {"jpg": np.arange(60_000, dtype=np.uint8).reshape(2, -1), "cls": np.arange(2)}
    write(pipe, Kind.BATCH, 7, encode_batch(Batch(data, num_rows=2)))
    batch = decode_batch(read_frame(pipe, LIMITS, take))
    assert len(memory) == 1
    assert all(np.shares_memory(batch.data[name], memory[0]) for name in data)


def test_an_array_that_comes_twice_is_sent_once() -> None:
    ids = np.arange(100_000)
    encoded = encode_batch(Batch({"__index__": ids, "again": ids}, num_rows=1))
    assert encoded.num_payload < 2 * ids.nbytes
    batch = decode_batch(passed(Kind.BATCH, encoded))
    assert batch.data["again"].tolist() == ids.tolist()


@pytest.mark.parametrize(
    "error", [KeyError("a"), StopIteration(1), UnicodeDecodeError("utf8", b"", 0, 1, "no"),
              OSError(5, "io"), np.exceptions.AxisError("axis")],
)  # fmt: skip
def test_an_error_of_any_type_comes_back_as_one_with_its_message(error: Exception) -> None:
    back = decode_error(passed(Kind.ERROR, encode_error(error, place="tcp://a:1")))
    if isinstance(error, KeyError | OSError):
        assert (type(back), back.args) == (type(error), error.args)
    else:
        assert type(back) is RuntimeError
        assert str(error) in str(back)
    assert "tcp://a:1" in "".join(back.__notes__)


@pytest.mark.parametrize("place", [4, 20])
def test_a_frame_of_an_unknown_kind_is_not_taken_for_another_transports(place: int) -> None:
    pipe = Pipe()
    write(pipe, Kind.BATCH, 7, encode_batch(Batch({}, num_rows=1)))
    pipe.data[place] = 99
    with pytest.raises(FrameError, match=r"unknown kind.*99") as caught:
        read_frame(pipe, LIMITS)
    assert type(caught.value) is FrameError


@settings(max_examples=examples(300))
@given(VALUES, st.integers(0, 10_000), st.integers(0, 255), st.binary(max_size=8))
def test_a_damaged_frame_is_a_frame_error_or_a_batch(
    value: Any, place: int, byte: int, more: bytes
) -> None:
    pipe = Pipe()
    write(pipe, Kind.BATCH, 7, encode_batch(Batch({"a": value}, num_rows=1)))
    place %= len(pipe.data)
    pipe.data[place : place + 1] = bytes([byte]) + more
    for decode in (decode_batch, decode_request, decode_error):
        try:
            decode(read_frame(Pipe(bytes(pipe.data)), LIMITS))
        except (FrameError, EOFError):
            continue


TAGS = st.sampled_from(["array", "bytes", "dict", "objects", "scalar", "tensor", "tuple", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([2**63, 10**30, -(2**70)])
    | st.floats() | st.text(max_size=4) | st.sampled_from(["<i8", "(2,", "array", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TAGS, inner, max_size=2),
    max_leaves=9,
)  # fmt: skip


def places(document: Any) -> list[tuple[Any, Any]]:
    """The containers of a document with the keys of their entries."""
    if not isinstance(document, dict | list):
        return []
    keys = list(document) if isinstance(document, dict) else range(len(document))
    return [each for key in keys for each in [(document, key), *places(document[key])]]


BUILDER = BatchBuilder(sw.wrap([{"a": n, "b": [b"x"] * n} for n in range(8)]))
REQUEST = BatchRequest(1, 2, np.arange(1, 4))
SENT = {
    Kind.REQUEST: encode_request(REQUEST),
    Kind.BATCH: encode_batch(BUILDER.build(REQUEST)),
    Kind.ERROR: encode_error(sw.DataError("no", url="a", index=3), place="tcp://a:1"),
}


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(list(SENT)), st.data())
def test_a_frame_with_any_other_entries_is_a_frame_error_or_decoded(
    kind: Kind, data: st.DataObject
) -> None:
    pipe = Pipe()
    write(pipe, kind, 7, SENT[kind])
    document = json.loads(SENT[kind].header)
    for _ in range(data.draw(st.integers(1, 3))):
        found = places(document)
        container, key = found[data.draw(st.integers(0, len(found) - 1))]
        container[key] = data.draw(JSON)
    header = json.dumps(document).encode()
    payload = bytes(pipe.data[32 + len(SENT[kind].header) :])
    prefix = struct.pack("<4sB3xQIIQ", b"SWB1", kind, 7, len(header), 0, len(payload))
    with suppress(FrameError):
        frame = read_frame(Pipe(prefix + header + payload), LIMITS)
        if kind == Kind.BATCH:
            check_batch(decode_batch(frame), REQUEST, BUILDER)
        elif kind == Kind.REQUEST:
            decode_request(frame)
        else:
            str(decode_error(frame))


ROWS = st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.booleans()), min_size=1, max_size=9)


@given(ROWS, st.sampled_from(["raise", "skip", "replace"]), st.data())
def test_a_batch_is_the_one_that_was_asked_for_or_a_frame_error(
    rows: list[tuple[int, bool, bool]], on_error: Any, data: st.DataObject
) -> None:
    """Also where samples are skipped or replaced, rows repeat, and some only pad."""
    ids = np.array([n for n, _, _ in rows], dtype=np.int64)
    valid = np.array([is_valid for _, is_valid, _ in rows])
    bad = {n for n, _, is_bad in rows if is_bad and on_error != "raise" and n}

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["value"] in bad:
            raise ValueError(sample["value"])
        return sample

    builder = BatchBuilder(sw.wrap(list(range(8))).map(refuse), on_error=on_error)
    # Only batches without bad samples are coalesced.
    sizes = (2, len(ids) - 2) if len(ids) > 2 and on_error == "raise" else ()
    request = BatchRequest(0, 0, ids, valid if data.draw(st.booleans()) else None, sizes)
    batch = decode_batch(passed(Kind.BATCH, encode_batch(builder.build(request))))
    check_batch(batch, request, builder)
    # Where samples are bad, rows that only pad may have become others.
    checked = valid | (request.valid is None) | (not batch.num_skipped + batch.num_replaced)
    if not checked.any():
        return
    other = ids.copy()
    other[data.draw(st.sampled_from(np.flatnonzero(checked).tolist()))] += 8
    with pytest.raises(FrameError, match="another batch"):
        check_batch(batch, BatchRequest(0, 0, other, request.valid, sizes), builder)


def test_lengths_are_refused_before_memory_is_set_aside() -> None:
    taken: list[int] = []

    def memory(size: int) -> Any:
        taken.append(size)
        return np.empty(size, dtype=np.uint8)

    for header, payload in ((1 << 31, 0), (2, 1 << 62)):
        prefix = struct.pack("<4sB3xQIIQ", b"SWB1", 8, 0, header, 0, payload)
        with pytest.raises(FrameError, match="of at most"):
            read_frame(Pipe(prefix + b"{}"), LIMITS, memory)
    assert taken == []


def test_what_a_peer_said_steers_no_terminal_and_is_cut():
    text = str(FrameError("an invalid header: \x1b[31m\x07" + "x" * 10_000))
    assert r"\x1b[31m\x07xxx" in text
    assert len(text) < 1000
