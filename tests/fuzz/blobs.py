"""Damaged bytes of one file or connection: kept columns, media sidecars, coverage, frames."""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import shardwise as sw
from shardwise.dataset.kept_arrays import KeptArrays, write_arrays
from shardwise.engine.request import Batch, BatchRequest, BatchRows
from shardwise.extensions.media.files.index_format import bad_block, index_to_bytes
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.tar.sidecar import SidecarHeader, encode_sidecar
from shardwise.extensions.service.batches import encode_batch, encode_request
from shardwise.extensions.service.error_frames import encode_error
from shardwise.extensions.service.frames import Kind, encoded, write
from shardwise.extensions.service.version import VersionWord
from tests.fuzz.damage import Case, altered, damaged, json_text
from tests.support.column_files import header_of, signed, with_header

PLACE = "columns"


def kept(folder: Path | str) -> KeptArrays:
    """The place of the arrays that are damaged."""
    return KeptArrays(str(folder), name="case", origin=PLACE)


# Columns of a dataset.


@lru_cache
def _arrays() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.swc")
        arrays = {"values": np.arange(9), "text": np.array(["a", "bcd"]), "one": np.array(3)}
        write_arrays(path, arrays, kept(folder).digest)
        return path.read_bytes()


@st.composite
def columns(draw: Any) -> Case:
    data = _arrays()
    if draw(st.booleans()):
        data = with_header(data, draw(altered(header_of(data))))
    else:
        data = draw(damaged(data))
        data = signed(data) if draw(st.booleans()) else data
    return "case.swc", data


# Media sidecars.


def sound_file() -> bytes:
    """A wav of 100 samples."""
    sound = np.arange(100, dtype="<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(sound)) + sound
    return struct.pack("<4sI", b"RIFF", len(body)) + body


@lru_cache
def _blocks() -> list[bytes]:
    from shardwise.extensions.media.files.byte_reader import BytesReader

    block = index_to_bytes(index_media(BytesReader(sound_file())))
    return [block, b"", bad_block("no media"), block]


def _sidecar(blocks: list[bytes]) -> bytes:
    header = SidecarHeader(num_bytes=1024, num_samples=2, fields=("wav", "mp4"), layout=7)
    return encode_sidecar(header, blocks)


@st.composite
def media(draw: Any) -> Case:
    """The checksums of a sidecar or of a block may be put right again."""
    kind = draw(st.sampled_from(("file", "head", "block")))
    data = _sidecar(_blocks())
    if kind == "file":
        return "case.tar.media", draw(damaged(data))
    if kind == "block":
        block = draw(damaged(_blocks()[0]))
        block = block[:4] + struct.pack("<I", zlib.crc32(block[8:])) + block[8:]
        return "case.tar.media", _sidecar([block, *_blocks()[1:]])
    size = len(data) - sum(map(len, _blocks()))
    head = data[:size]
    if draw(st.booleans()):
        head = with_header(head, draw(altered(header_of(head))))
    else:
        start = size - 4 - 2 * len(_blocks())
        ends = draw(damaged(head[start:-4])).ljust(size - 4 - start, b"\xff")[: size - 4 - start]
        head = signed(head[:start] + ends + head[-4:])
    return "case.tar.media", head + data[size:]


# Lines of coverage.


@lru_cache
def _lines() -> list[Any]:
    """What two ranks wrote of an epoch."""
    data = sw.wrap([{"n": number} for number in range(13)])
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(2):
            options = {"rank": rank, "world_size": 2, "num_workers": 0, "output": "numpy"}
            with sw.DataLoader(data, batch_size=2, coverage=folder, **options) as loader:
                list(loader)
        texts = [path.read_text() for path in sorted(Path(folder).iterdir())]
    return [json.loads(line) for text in texts for line in text.splitlines()]


@st.composite
def coverage(draw: Any) -> Case:
    lines = [json_text(line) for line in _lines()]
    if draw(st.booleans()):
        place = draw(st.integers(0, len(lines) - 1))
        lines[place] = json_text(draw(altered(_lines()[place])))
        return "case.jsonl", b"\n".join(lines) + b"\n"
    return "case.jsonl", draw(damaged(b"\n".join(lines) + b"\n"))


# Frames, as a server and as a client receives them.


class Script:
    """A connection that gives what it was told, and records what is sent."""

    local_endpoint = b""

    def __init__(self, data: bytes = b"") -> None:
        self.sent = bytearray()
        self._data = memoryview(data)

    def set_remote_endpoint(self, endpoint: bytes) -> None:
        """Nothing: no transport."""

    def limit(self, timeout_s: float | None) -> None:
        """Nothing: it never waits."""

    def close(self) -> None:
        """Nothing."""

    def send(self, buffers: Any) -> None:
        for each in buffers:
            self.sent += each

    def receive_into(self, buffer: memoryview) -> None:
        if len(self._data) < len(buffer):
            raise EOFError
        buffer[:] = self._data[: len(buffer)]
        self._data = self._data[len(buffer) :]


def word() -> VersionWord:
    return VersionWord("1", "f" * 16, "r" * 16)


Said = list[tuple[Kind, int, Any]]


@lru_cache
def _frames() -> dict[str, Said]:
    ids = np.arange(4)
    request = BatchRequest(0, 1, ids, ids < 3, ())
    proof = {"proof": None, "endpoint": "", "word": asdict(word()), "options": {"a": 1},
             "digest": None, "needs_pickle": False, "python": "3.11"}  # fmt: skip
    data = {"x": np.ones((4, 2)), "text": ["a", "b", "c", "d"], "raw": [b"1", b"", b"3", b"4"],
            "pair": (1, np.float32(2)), "objects": np.array([[1], [2, 3]], object),
            "__index__": ids}  # fmt: skip
    batch = Batch(data, num_rows=4, rows=BatchRows(ids=ids), chunks=[(ids, 0.5)])
    error = sw.DataError("damaged", url="a.tar", key="k", offset=7)
    return {
        "server": [
            (Kind.HELLO, 0, encoded({"protocol": 2, "nonce": "0" * 32})),
            (Kind.PROOF, 0, encoded(proof)),
            (Kind.REQUEST, 1, encode_request(request)),
        ],
        "client": [
            (Kind.CHALLENGE, 0, encoded({"nonce": "0" * 32, "has_dataset": True})),
            (Kind.WELCOME, 0, encoded({"credits": 3})),
            (Kind.BATCH, 1, encode_batch(batch)),
            (Kind.ERROR, 2, encode_error(error, place="here")),
        ],
    }


@st.composite
def frames(draw: Any) -> Case:
    """What one end receives: a header altered behind lengths that hold, or bytes changed."""
    end = draw(st.sampled_from(("server", "client")))
    parts = []
    said = _frames()[end]
    place = draw(st.integers(-1, len(said) - 1))
    for number, (kind, request, frame) in enumerate(said):
        script = Script()
        if number == place:
            header = json_text(draw(altered(json.loads(frame.header))))
            frame = type(frame)(header, frame.buffers, frame.num_payload)
        write(script, kind, request, frame)
        parts.append(bytes(script.sent))
    data = b"".join(parts)
    return f"case.{end}", draw(damaged(data)) if place < 0 else data


strategies: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (columns, coverage, frames, media)
}
