"""Ranges to read: every payload once, in few reads, in order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.sources.tar.read.shards import GAP_BYTES, plan_reads
from tests.support.properties import examples

PAYLOADS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.one_of(st.integers(0, 50_000), st.integers(0, 1 << 43)),
        st.integers(-1, 40_000),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=examples(200))
@given(PAYLOADS)
def test_every_payload_lies_in_the_buffer_where_the_plan_says(payloads):
    files, offsets, sizes = (np.array([p[i] for p in payloads], dtype=np.int64) for i in range(3))
    plan = plan_reads(files, offsets, sizes)
    begins = np.append(0, plan.ends[:-1])[: len(plan.ends)]
    lengths = plan.ends - begins
    assert (lengths > 0).all()
    assert plan.num_bytes == lengths.sum()
    for file, offset, size, place in zip(files, offsets, sizes, plan.starts, strict=True):
        if size > 0:
            read = int(np.searchsorted(plan.ends, place, side="right"))
            assert plan.files[read] == file
            assert plan.offsets[read] + place - begins[read] == offset
            assert place + size <= plan.ends[read]
    # In order, and so far apart that joining them would not pay.
    order = list(zip(plan.files.tolist(), plan.offsets.tolist(), lengths.tolist(), strict=True))
    for (file, offset, length), (next_file, next_offset, _) in pairwise(order):
        assert (file, offset + length + GAP_BYTES) < (next_file, next_offset)
    wanted = sum(size for _, _, size in payloads if size > 0)
    assert plan.num_bytes <= wanted + GAP_BYTES * max(0, len(payloads) - 1)


def test_nothing_to_read_needs_no_reads():
    empty = np.empty(0, np.int64)
    assert plan_reads(empty, empty, empty).num_bytes == 0
    plan = plan_reads(np.array([0, 0]), np.array([512, 0]), np.array([0, -1]))
    assert (len(plan.ends), plan.num_bytes, plan.starts.tolist()) == (0, 0, [0, 0])


def test_shards_have_any_number():
    files = np.array([1_000_000, 600_000, 600_000], np.int64)
    plan = plan_reads(files, np.array([512, 1 << 41, 512]), np.array([10, 20, 30]))
    assert plan.files.tolist() == [600_000, 600_000, 1_000_000]
    assert plan.offsets.tolist() == [512, 1 << 41, 512]
