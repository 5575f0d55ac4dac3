"""Damaged input of the library's own kinds: tars, indexes, lists, Parquet files, states."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import shardwise as sw
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.merge import merge_indexes
from tests.fuzz.damage import BLOCK, Case, altered, damaged, json_text
from tests.support.column_files import header_of, signed, with_header
from tests.support.raw_tars import END, header, sign
from tests.support.tars import FORMATS, tar_bytes

MTIME_NS = 10**18

# Tar headers.


@lru_cache
def _tars() -> Sequence[bytes]:
    found = []
    for name in FORMATS:
        long = "d" * 90 + "/" + "f" * 60
        members = [("a.txt", b"1"), ("a.cls", b""), ("é/b.txt", b"x" * 600), ("é/b.cls", b"2")]
        members += [(f"{long}.txt", b"3"), (f"{long}.cls", b"4")] if name != "ustar" else []
        data = tar_bytes(members, format=name).rstrip(b"\0")
        data += bytes(-len(data) % BLOCK)
        folder, link = header(b"d", 0, kind=b"5"), bytearray(header(b"l.txt", 0, kind=b"1"))
        link[157:162] = b"a.txt"
        found.append(folder + data + sign(bytes(link)) + END)
    return found


@st.composite
def headers(draw: Any) -> Case:
    """A tar; its checksums may be put right again, so that the damage is met behind them."""
    seed = draw(st.sampled_from(_tars()))
    data = bytearray(draw(damaged(seed)))
    if draw(st.booleans()):
        for start in range(0, len(data) - BLOCK + 1, BLOCK):
            block = data[start : start + BLOCK]
            if block[257:262] == b"ustar":
                data[start : start + BLOCK] = sign(bytes(block))
    return "case.tar", bytes(data)


# Index files, beside the shard that `write_sound_tar` writes.


@lru_cache
def sound_tar() -> tuple[bytes, bytes]:
    """A shard that was changed at MTIME_NS, and its index: the same each time."""
    with tempfile.TemporaryDirectory() as folder:
        with sw.TarWriter(f"{folder}/case.tar", index=False) as writer:
            for number in range(9):
                optional = {"json": {"n": number}} if number % 2 else {}
                writer.write({"__key__": f"k{number:03d}", "txt": "x" * number, **optional})
        tar = Path(folder, "case.tar")
        os.utime(tar, ns=(MTIME_NS, MTIME_NS))
        build_indexes(tar, digests=True)
        return tar.read_bytes(), Path(f"{tar}.swi").read_bytes()


def write_sound_tar(path: Path, *, index: bool = True) -> None:
    """Write the shard, and its index beside it."""
    data, index_data = sound_tar()
    path.write_bytes(data)
    os.utime(path, ns=(MTIME_NS, MTIME_NS))
    if index:
        Path(f"{path}.swi").write_bytes(index_data)


def index() -> st.SearchStrategy[Case]:
    return st.tuples(st.just("case.tar.swi"), _damaged_columns(sound_tar()[1]))


@st.composite
def _damaged_columns(draw: Any, data: bytes) -> bytes:
    """A file of columns with its header altered, or some bytes changed.

    The checksum of changed bytes may be put right again.
    """
    if draw(st.sampled_from((True, True, False))):
        return with_header(data, draw(altered(header_of(data))))
    data = draw(damaged(data))
    return signed(data) if draw(st.sampled_from((True, True, False))) else data


# Manifest files, beside the shard that `write_sound_tar` writes.


@lru_cache
def _sound_manifest() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tar, manifest = Path(folder, "case.tar"), f"{folder}/case.swm"
        write_sound_tar(tar)
        merge_indexes(manifest, [str(tar)], store=IndexStore())
        return Path(manifest).read_bytes()


def manifest() -> st.SearchStrategy[Case]:
    return st.tuples(st.just("case.swm"), _damaged_columns(_sound_manifest()))


# Lists of files, and lists of shards.

_ROWS = [{"path": "0.txt", "n": 1, "said": "a\u2028b"}, {"path": "1.txt", "n": 2, "said": "b"}]
_SHARD_LISTS: Sequence[Any] = (
    {"__kind__": "wids-shard-index-v1", "wids_version": 1,
     "shardlist": [{"url": "case.tar", "nsamples": 9, "filesize": 20}]},
    {"case.tar": 9},
    {"splits": {"train": {"filenames": ["case.tar"], "shard_lengths": [9], "num_samples": 9}}},
)  # fmt: skip


@st.composite
def lists(draw: Any) -> Case:
    """JSONL, CSV, TSV, or the JSON of wids, open_clip and timm."""
    suffix = draw(st.sampled_from(("jsonl", "json", "jsonl", "json", "csv", "tsv")))
    alter = draw(st.booleans())
    if suffix == "json":
        value = draw(st.sampled_from(_SHARD_LISTS))
        text = json_text(draw(altered(value)) if alter else value)
    elif suffix == "jsonl":
        rows: Any = draw(altered(_ROWS)) if alter else _ROWS
        text = b"\n".join(map(json_text, rows if isinstance(rows, list) else [rows]))
    else:
        text = b'path,n,said\n0.txt,1,"a\nb"\n1.txt,2,c\n'
        text = text.replace(b",", b"\t") if suffix == "tsv" else text
        alter = False
    return f"case.{suffix}", text if alter else draw(damaged(text))


# Parquet.


@lru_cache
def _tables() -> Sequence[bytes]:
    table = pa.table(
        {
            "n": pa.array([1, None, 3, 4], pa.int32()),
            "text": ["a", "é" * 20, None, "d"],
            "data": [b"\xff", b"", b"x" * 40, None],
            "list": [[1.0, 2.0], [], None, [3.0]],
            "part": pa.array([{"a": 1}, {"a": None}, None, {"a": 4}]),
        }
    )
    found = []
    for options in ({"compression": "none"}, {"compression": "snappy", "use_dictionary": False}):
        file = io.BytesIO()
        pq.write_table(table, file, row_group_size=2, write_page_checksum=True, **options)
        found.append(file.getvalue())
    return found


def parquet() -> st.SearchStrategy[Case]:
    return st.tuples(st.just("case.parquet"), st.sampled_from(_tables()).flatmap(damaged))


# The state of a loader.


def state_loader() -> sw.DataLoader:
    """The loader whose state is damaged."""
    data = sw.wrap([{"n": number} for number in range(23)])
    return sw.DataLoader(
        data, batch_size=2, shuffle="full", rank=0, world_size=2, num_workers=0, output="numpy"
    )


@lru_cache
def _sound_state() -> dict[str, Any]:
    with state_loader() as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        return loader.state_dict()


def state() -> st.SearchStrategy[Case]:
    return st.tuples(st.just("case.state"), altered(_sound_state()).map(json_text))


strategies: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (headers, index, lists, manifest, parquet, state)
}
