"""`sw.tokens`: blocks of files, and of documents joined in an epoch's order."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.extensions.formats.tokens import source as read
from shardwise.testing import check_source
from tests.support.properties import examples
from tests.support.servers import nginx
from tests.support.token_files import documents_of, write_litdata, write_megatron

RNG = np.random.default_rng(0)
SIZES = RNG.integers(1, 60, 90).tolist()


def corpus(folder, sizes=SIZES):
    """Two files of Megatron, and all their tokens."""
    documents = documents_of(sizes)
    half = len(sizes) // 2
    write_megatron(folder / "a.bin", documents[:half])
    write_megatron(folder / "b.bin", documents[half:])
    return documents


def loader(ds, **options):
    base = {"batch_size": 4, "remainder": "uneven", "output": "numpy", "num_workers": 0}
    return sw.DataLoader(ds, **(base | options))


@pytest.mark.parametrize("documents", [False, True])
def test_it_is_a_source_like_others(tmp_path, documents):
    corpus(tmp_path)
    ds = sw.tokens([tmp_path / "a.bin", tmp_path / "b.bin"], block=16, documents=documents)
    check_source(ds.source)
    lit = write_litdata(tmp_path / "lit", [documents_of(SIZES[:40]), documents_of(SIZES[40:])],
                        "no_header_tensor:20")  # fmt: skip
    check_source(sw.tokens(lit, block=16, documents=documents).source)


@settings(max_examples=examples(30))
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 12))
def test_blocks_are_each_files_tokens_in_order_and_share_one(tmp_path_factory, counts, block):
    folder = tmp_path_factory.mktemp("raw")
    files = [np.arange(n, dtype=np.uint16) + 1000 * i for i, n in enumerate(counts)]
    for i, tokens in enumerate(files):
        tokens.tofile(folder / f"{i}.bin")
    expected = [
        tokens[at : at + block + 1].tolist()
        for tokens in files
        for at in range(0, len(tokens) - block, block)
    ]
    ds = sw.tokens([folder / f"{i}.bin" for i in range(len(files))], block=block, dtype="uint16")
    if not expected:
        with pytest.raises(sw.DataError, match="no block"):
            len(ds)
        return
    assert [s["tokens"].tolist() for s in ds] == expected
    used = sum(n - 1 - (n - 1) % block + 1 for n in counts if n > block)
    assert ds.source.num_dropped == sum(counts) - used


@settings(max_examples=examples(25))
@given(st.lists(st.integers(0, 30), min_size=2, max_size=30), st.integers(1, 40), st.integers(0, 5))
def test_joined_documents_are_whole_and_each_once_an_epoch(tmp_path_factory, sizes, block, epoch):
    if sum(sizes) <= block:
        return
    folder = tmp_path_factory.mktemp("joined")
    corpus(folder, sizes)
    ds = sw.tokens([folder / "a.bin", folder / "b.bin"], block=block, documents=True)
    columns = ds.load(np.arange(len(ds)), epoch=epoch, seed=9)["tokens"]
    joined = [*columns[:, :-1].ravel().tolist(), int(columns[-1, -1])]
    assert (columns[1:, 0] == columns[:-1, -1]).all(), "blocks share one token"
    assert len(joined) == len(ds) * block + 1 > sum(sizes) - block
    starts = [i for i, token in enumerate(joined) if token % 100 == 0]
    assert starts[0] == 0
    order = [joined[i] // 100 for i in starts]
    assert len(set(order)) == len(order)
    for number, start in enumerate(starts[:-1]):
        size = sizes[order[number]]
        assert joined[start : start + size] == list(
            range(100 * order[number], joined[start] + size)
        )
        assert starts[number + 1] == start + size


def test_documents_have_another_order_in_each_epoch_and_seed(tmp_path):
    corpus(tmp_path)
    ds = sw.tokens([tmp_path / "a.bin", tmp_path / "b.bin"], block=16, documents=True)
    blocks = loader(ds, seed=1)
    epochs = [np.concatenate([b["tokens"] for b in blocks]).tolist() for _ in range(3)]
    assert len({str(e) for e in epochs}) == 3
    again = [np.concatenate([b["tokens"] for b in loader(ds, seed=1)]).tolist()]
    assert again == epochs[:1]
    other = np.concatenate([b["tokens"] for b in loader(ds, seed=2)]).tolist()
    assert other != epochs[0]
    behind = loader(sw.concat([ds, ds.subset([0])]), seed=1)
    for epoch in epochs:
        assert np.concatenate([b["tokens"] for b in behind]).tolist() == [*epoch, epoch[0]]


@pytest.mark.parametrize("shuffle", [False, "full"])
@pytest.mark.parametrize("documents", [False, True])
def test_any_number_of_ranks_takes_up_a_state_in_a_later_epoch(tmp_path, shuffle, documents):
    corpus(tmp_path)
    ds = sw.tokens([tmp_path / "a.bin", tmp_path / "b.bin"], block=16, documents=documents)

    def steps(world_size, state=None, stop=None):
        rows, last = {}, None
        for rank in range(world_size):
            with loader(ds, batch_size=12 // world_size, rank=rank, world_size=world_size,
                        shuffle=shuffle, seed=5) as made:  # fmt: skip
                made.set_epoch(2)
                if state is not None:
                    made.load_state_dict(state)
                for step, batch in enumerate(made):
                    rows.setdefault(step, []).extend(map(tuple, batch["tokens"].tolist()))
                    if step + 1 == stop:
                        break
                last = made.state_dict()
        return [sorted(rows[step]) for step in sorted(rows)], last

    whole, _ = steps(1)
    first, state = steps(4, stop=3)
    rest, _ = steps(3, state)
    assert len(str(state)) < 1000
    assert first + rest == whole


def test_remote_files_are_read_by_ranges(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    web = tmp_path / "web"
    web.mkdir()
    corpus(web)
    write_litdata(web / "lit", [documents_of(SIZES)], "no_header_tensor:20")
    np.save(web / "c.npy", np.arange(500, dtype=np.uint16))
    with nginx(web) as server:
        for name, documents in (("{a,b}.bin", False), ("{a,b}.bin", True),
                                ("lit/index.json", True), ("c.npy", False)):  # fmt: skip
            far = sw.tokens(f"{server.url}/{name}", block=16, documents=documents)
            near = sw.tokens([web / n for n in ("a.bin", "b.bin")] if "{" in name else web / name,
                             block=16, documents=documents)  # fmt: skip
            assert far.fingerprint == near.fingerprint
            ids = RNG.integers(0, len(near), 20)
            assert (far.load(ids)["tokens"] == near.load(ids)["tokens"]).all()
            if not documents:
                assert far.default_shuffle == "window"
                assert near.default_shuffle == "full"
        np.arange(5000, dtype=np.uint16).tofile(web / "d.bin")
        with pytest.raises(sw.DataError, match="give dtype"):
            len(sw.tokens(f"{server.url}/d.bin"))
        ds = sw.tokens(f"{server.url}/d.bin", dtype="uint16", block=16)
        len(ds)
        np.arange(4000, dtype=np.uint16).tofile(web / "d.bin")
        with pytest.raises((sw.DataError, sw.StorageError)):
            ds[0]


def test_a_local_file_that_is_cut_is_an_error_and_ends_no_process(tmp_path):
    path = tmp_path / "a.bin"
    np.arange(100_000, dtype=np.uint16).tofile(path)
    ds = sw.tokens(path, dtype="uint16", block=16)
    assert ds[3]["tokens"][0] == 48
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(sw.StaleIndexError, match="has 1,000 bytes") as raised:
        ds[-1]
    assert raised.value.url == str(path)


def test_mapped_files_keep_to_the_limit_of_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "max_open_files", lambda: 6)
    paths = [tmp_path.resolve() / f"{number}.bin" for number in range(9)]
    for path in paths:
        path.write_bytes(bytes(2 * 5))
    data = sw.tokens(paths, block=2, dtype="uint16")
    for index in range(len(data)):
        data.source.read(np.array([index]))
        under = [file.path for file in psutil.Process().open_files()]
        assert sum(path.startswith(str(tmp_path.resolve())) for path in under) <= 6
