"""The in-memory source of the tests is a source like any other."""

import numpy as np
import pytest

from shardwise.errors import DataError
from shardwise.testing.sources import check_source
from tests.support.memory_source import MemorySource, numbered_samples


def test_it_keeps_what_a_source_keeps():
    samples = numbered_samples(30)
    samples[3]["opt"] = b"only here"
    samples[4]["txt"] = None
    check_source(MemorySource(samples, [0, 10, 20]), expected=samples)


def test_it_fails_where_it_is_told_to():
    source = MemorySource(numbered_samples(5))
    source.fail_at(3)
    source.read(np.array([0, 4]))
    for _ in range(2):
        with pytest.raises(DataError, match="key-00003"):
            source.read(np.array([0, 3]))
    assert [ids for ids, _ in source.reads] == [(0, 4), (0, 3), (0, 3)]
