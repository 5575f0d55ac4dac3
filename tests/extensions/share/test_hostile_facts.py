"""Facts of others - ranks, nodes, files of a cache's folder - are what they must be, or a miss."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.cache.block_file import BlockInfo, parse_trailer, trailer
from shardwise.extensions.remote.cache.eviction import NextUses
from shardwise.extensions.remote.cache.homes import HOME, keys_of_names
from shardwise.extensions.remote.cache.usage import LoaderFile
from shardwise.extensions.share import sharing
from shardwise.extensions.share.peers import Peers
from shardwise.extensions.share.placement import holders
from shardwise.storage.options import CacheSettings
from tests.support.counted_file import CountedFile
from tests.support.properties import examples

NAME = "1" * 32 + "-00000000.block"
MOST = 1 << 63
REUSED = settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# What JSON may have, numbers that no int64 holds and texts that no header holds among them.
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text()
    | st.integers() | st.sampled_from([-1, 0, 5, MOST - 1, MOST, 10**100, "\ud800", "a\nb"]),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(), some, max_size=4),
    max_leaves=8,
)  # fmt: skip


def mutated(good: list[object]) -> st.SearchStrategy[bytes]:
    """The JSON of a list with one value replaced, of any value, and any bytes."""
    one = st.tuples(st.integers(0, len(good) - 1), JSON).map(
        lambda at: [*good[: at[0]], at[1], *good[at[0] + 1 :]]
    )
    texts = (one | JSON | st.just(good)).map(lambda value: json.dumps(value).encode())
    return texts | st.binary() | st.just(b"[" * 5000)


@pytest.fixture
def file(tmp_path: Path) -> CachedFile:
    (tmp_path / "000").write_bytes(b"data")
    of_store = CountedFile("s3://bucket/000", tmp_path / "000", tmp_path / "log", etag='"1"')
    return CachedFile(of_store, cache_of(CacheSettings(tmp_path / "cache")))


@REUSED
@given(mutated([7, 100, 5, '"etag"']).filter(lambda text: len(text) <= 256))
def test_a_note_is_a_version_or_none(file: CachedFile, text: bytes) -> None:
    name = file._note_name()
    file.cache.put(name, BlockInfo("s3://bucket/000", "note", 0, 0, 256), text.ljust(256))
    noted = file.read_note(7)
    if noted is not None:
        assert 0 <= noted.num_bytes < MOST
        assert 0 <= noted.mtime_ns < MOST
        assert noted.etag.isprintable()
        noted.etag.encode()


@settings(max_examples=examples(200))
@given(st.dictionaries(st.sampled_from([*BlockInfo._fields, "other"]), JSON))
def test_a_block_has_the_origin_that_its_name_needs_or_is_none(changed: dict[str, object]) -> None:
    good = BlockInfo("s3://bucket/000", '"1"', 100, 0, 4)
    info = SimpleNamespace(_asdict=lambda: good._asdict() | changed, num_bytes=4)
    data = b"data" + trailer(NAME, info, [0])
    found = parse_trailer(NAME, len(data), lambda length, at: data[at : at + length])
    assert found is None or found[0] == good._replace(**changed)
    if found is not None:
        assert all(type(value) is type(own) for value, own in zip(found[0], good, strict=True))


@REUSED
@given(
    mutated(["node", 5, True, "tcp", "10.0.0.1", "host", 7000])
    | st.just(json.dumps(["n" * 5000, 5, True, "tcp", "10.0.0.1", "host", 7000]).encode())
)
def test_what_a_rank_publishes_is_a_node_or_nothing_is_shared(monkeypatch, text: bytes) -> None:
    store = SimpleNamespace(
        check=lambda _: True,
        has_extended_api=lambda: True,
        multi_get=lambda keys: [text] * len(keys),
    )
    monkeypatch.setattr(sharing, "group_store", lambda: store)
    with suppress(DataError):
        for name, room, is_warm, address in sharing._gather(
            "key", SimpleNamespace(is_open=True), 2, Event()
        ):
            assert len(name) < 5000
            assert 0 <= room < MOST
            assert is_warm in (True, False)
            scheme, _, place = address.partition("://")
            assert scheme in ("tcp", "tls", "ucx")
            assert 0 < int(place.rpartition(":")[2]) < 1 << 16


@REUSED
@given(
    st.integers(-(2**63), MOST - 1) | st.sampled_from([0, 1, 2]),
    st.lists(st.integers(-5, 5), min_size=3, max_size=3),
    st.fixed_dictionaries(
        {"addresses": st.just(["tcp://a:1", "tcp://b:1"]) | JSON, "me": st.just(0) | JSON,
         "token": st.just("t") | JSON}
    ).map(json.dumps) | JSON.map(json.dumps),
)  # fmt: skip
def test_homes_name_nodes_or_are_ignored(tmp_path, count: int, nodes: list[int], facts: str):
    rows = np.zeros(1, HOME)
    rows["key"] = keys_of_names([NAME])
    rows["home"], rows["before"], rows["warm"] = nodes
    of_loader = [LoaderFile(str(tmp_path), kind, nullcontext) for kind in ("homes", "uses")]
    try:
        for each in of_loader:
            each.fill(rows.tobytes() + facts.encode(), 0, count)
        asking = Peers(SimpleNamespace(settings=CacheSettings(tmp_path), folder=str(tmp_path)))
        homes, _ = asking._known_homes()
        block = SimpleNamespace(name=NAME, for_peer=False, nodes=None)
        for each in homes:
            for address, token, _ in asking._nodes(
                block, each.rows(keys_of_names([NAME]))[0][0], each.facts
            ):
                assert type(address) is str
                assert type(token) is str
        assert len(NextUses(str(tmp_path)).of([NAME])) == 1
    finally:
        for each in of_loader:
            each.close()


@given(st.lists(st.integers(0, MOST - 1), min_size=2, max_size=3))
def test_rooms_of_any_size_take_no_memory(rooms: list[int]) -> None:
    readers = np.array([0, 1] * 10)
    held = holders(readers, np.arange(20), rooms)
    assert set(held.tolist()) <= {*range(len(rooms))}
