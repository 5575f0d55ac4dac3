"""Packs: every token once, in packs that are nearly full."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwise.extensions.packs.packing import pack_documents

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


DOCUMENTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 9)), max_size=80
).map(lambda rows: np.array(rows, np.int64).reshape(-1, 3))


@given(DOCUMENTS, st.integers(1, 30), st.integers(1, 20), st.integers(1, 4), st.integers(1, 8))
def test_no_pack_is_above_a_limit_and_what_needs_some_is_in_one_pack_whole(
    documents, length, window, images, pixels
):
    lengths, needs = documents[:, 0], documents[:, 1:].T.astype(float)
    limits = {"images": (images, needs[0]), "pixels": (pixels, needs[1])}
    packs = pack_documents(lengths, length=length, window=window, long="drop", limits=limits)
    fits = (lengths <= length) & (needs[0] <= images) & (needs[1] <= pixels)
    assert packs.num_dropped == np.count_nonzero(~fits)
    assert sorted(packs.documents) == np.flatnonzero(fits & (lengths > 0)).tolist()
    for start, stop in zip(packs.starts[:-1], packs.starts[1:], strict=True):
        held = packs.documents[start:stop]
        assert lengths[held].sum() <= length
        assert needs[0, held].sum() <= images
        assert needs[1, held].sum() <= pixels
        assert len(set((held // window).tolist())) == 1
    # Of those that need nothing else, long ones are cut.
    plain = pack_documents(
        lengths, length=length, window=window, limits={"images": (1.0, np.zeros(len(lengths)))}
    )
    assert (plain.num_tokens, plain.num_dropped) == (lengths.sum(), 0)


def test_windows_waste_one_percent_more_than_packs_made_in_one_go_at_most():
    rng = np.random.default_rng(0)
    # Texts with a few pictures of many sizes; and long texts that have few, short ones many.
    few = rng.choice([0, 1, 1, 2, 3], 10_000)
    pixels = np.array([(rng.integers(64, 320, (n, 2))).prod(1).sum() for n in few], float)
    lengths = rng.lognormal(5, 1, 10_000).astype(int).clip(8, 1500) + (pixels / 1024).astype(int)
    many = rng.integers(0, 31, 6_000)
    longer = ((4000 - many * 130) * rng.uniform(0.2, 1, 6_000)).astype(int)
    for sizes, limits in (
        (lengths, {"images": (30.0, few.astype(float)), "pixels": (4e5, pixels)}),
        (longer, {"images": (30.0, many.astype(float))}),
    ):
        windows = pack_documents(sizes, length=4096, limits=limits)
        whole = pack_documents(sizes, length=4096, limits=limits, window=len(sizes))
        assert len(windows) <= 1.01 * len(whole)
        # No way of packing has fewer packs than the scarcest of the budgets allows.
        least = max(sizes.sum() / 4096, *(needs.sum() / most for most, needs in limits.values()))
        assert len(whole) <= 1.03 * least


def test_one_pack_of_each_document_where_a_limit_holds_one():
    packs = pack_documents(np.full(50, 2), length=100, limits={"images": (1.0, np.ones(50))})
    assert packs.documents.tolist() == list(range(50))
    assert packs.starts.tolist() == list(range(51))
