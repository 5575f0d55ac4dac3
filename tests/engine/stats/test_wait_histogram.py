"""Percentiles of waits from log-spaced buckets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.engine.stats.counts import WaitHistogram, percentiles, subtract


def histogram(waits):
    made = WaitHistogram()
    for seconds in waits:
        made.add(seconds)
    return made


@given(st.lists(st.floats(1e-6, 9_000.0), min_size=1, max_size=200))
def test_percentiles_are_within_one_percent_of_the_exact_ones(waits):
    found = percentiles(histogram(waits).to_pairs())
    exact = np.percentile(np.array(waits) * 1000, [50, 95, 99], method="lower")
    assert list(found) == ["p50", "p95", "p99"]
    assert list(found.values()) == pytest.approx(exact.tolist(), rel=0.01)


@given(st.lists(st.floats(0.0, 1e12), max_size=300))
def test_memory_is_bounded_and_no_wait_is_lost(waits):
    pairs = histogram(waits).to_pairs()
    assert sum(count for _, count in pairs) == len(waits)
    assert len(pairs) <= 1220
    assert all(0 < at < 2e7 for at, _ in pairs)


@given(st.lists(st.floats(1e-6, 100.0)), st.lists(st.floats(1e-6, 100.0)))
def test_the_later_waits_are_the_difference_of_two_histograms(before, after):
    both = histogram([*before, *after]).to_pairs()
    assert subtract(both, histogram(before).to_pairs()) == histogram(after).to_pairs()


def test_without_waits_percentiles_are_zero():
    assert percentiles([]) == {"p50": 0.0, "p95": 0.0, "p99": 0.0}
