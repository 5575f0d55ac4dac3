"""Packs: every token once, in packs that are nearly full."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwise.plan.packing import pack_documents

SIZES = st.lists(st.integers(0, 40), max_size=80).map(lambda sizes: np.array(sizes, np.int64))


@given(SIZES, st.integers(1, 30), st.integers(1, 20), st.sampled_from(["split", "drop"]))
def test_every_token_is_in_one_pack_and_no_pack_is_too_full(sizes, length, window, long):
    packs = pack_documents(sizes, length=length, window=window, long=long)
    seen = [
        (int(d), int(b) + i)
        for d, b, n in zip(packs.documents, packs.begins, packs.sizes, strict=True)
        for i in range(n)
    ]
    kept = [(d, i) for d, n in enumerate(sizes) if long == "split" or n <= length for i in range(n)]
    assert sorted(seen) == kept
    filled = np.add.reduceat(packs.sizes, packs.starts[:-1]) if len(packs) else np.array([])
    assert ((filled > 0) & (filled <= length)).all()
    assert packs.num_tokens == len(kept)
    assert packs.num_empty == np.count_nonzero(sizes == 0)
    assert packs.num_dropped == (sum(n > length for n in sizes) if long == "drop" else 0)


@given(SIZES, st.integers(1, 30), st.integers(1, 20))
def test_a_pack_holds_neighbours_of_one_window_in_storage_order(sizes, length, window):
    packs = pack_documents(sizes, length=length, window=window)
    for start, stop in zip(packs.starts[:-1], packs.starts[1:], strict=True):
        documents = packs.documents[start:stop]
        assert len(set((documents // window).tolist())) == 1
        assert (np.diff(documents) >= 0).all()
        assert (packs.wholes[start:stop] == sizes[documents]).all()
    firsts = packs.documents[packs.starts[:-1]]
    assert (np.diff(firsts) >= 0).all(), "packs are in storage order too"


@given(SIZES, st.integers(1, 30), st.integers(1, 20))
def test_no_two_packs_of_a_window_fit_into_one(sizes, length, window):
    packs = pack_documents(sizes, length=length, window=window)
    filled = np.add.reduceat(packs.sizes, packs.starts[:-1]) if len(packs) else np.array([])
    windows = packs.documents[packs.starts[:-1]] // window
    for number in set(windows.tolist()):
        least = np.sort(filled[windows == number])[:2]
        assert len(least) < 2 or least.sum() > length


def test_windows_of_4096_chats_fill_995_thousandths_of_packs_of_4096():
    lengths = np.random.default_rng(0).lognormal(6.2, 1.0, 40_000).astype(int).clip(1, 20_000)
    assert pack_documents(lengths, length=4096).efficiency >= 0.995
    assert pack_documents(lengths, length=4096, long="drop").efficiency >= 0.995


def test_nothing_to_pack_is_no_pack():
    for num_empty in (0, 2):
        packs = pack_documents(np.zeros(num_empty, np.int64), length=8)
        assert (len(packs), packs.num_tokens, packs.max_documents) == (0, 0, 0)
        assert packs.num_empty == num_empty
