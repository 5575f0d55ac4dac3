"""The conformance kit: a sound source passes, and each broken promise is noticed."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from shardwise.base.columns import BytesColumn, Columns
from shardwise.sources.manifest import Manifest, Shard
from shardwise.testing.sources import check_source
from tests.support.memory_source import MemorySource, numbered_samples


class Sound(MemorySource):
    """Twenty numbered samples in three shards."""

    def __init__(self):
        super().__init__(numbered_samples(20), [7, 0, 13])


class WrongOrder(Sound):
    def read(self, ids, fields=None):
        columns = super().read(np.sort(ids), fields)
        columns.ids = ids
        return columns


class NoRepeats(Sound):
    def read(self, ids, fields=None):
        return super().read(np.unique(ids), fields)


class AllFields(Sound):
    def read(self, ids, fields=None):
        return super().read(ids)


class WrongKeys(Sound):
    def read(self, ids, fields=None):
        columns = super().read(ids, fields)
        if len(ids) == 1:
            columns.keys = ["another"]
        return columns


class EmptyForMissing(Sound):
    def __init__(self):
        super().__init__()
        self._samples[3] = {"cls": b"3"}

    def read(self, ids, fields=None):
        columns = super().read(ids, fields)
        filled = {n: BytesColumn.of([p or b"" for p in c]) for n, c in columns.fields.items()}
        return Columns(columns.ids, columns.keys, filled)


class OneBuffer(Sound):
    """Two threads that read at once get each other's rows."""

    def read(self, ids, fields=None):
        self.last = ids
        for _ in range(100):
            threading.Event().wait(0.0001)
        columns = super().read(self.last, fields)
        columns.ids = ids
        return columns


class DiesInTheChild(Sound):
    def __init__(self):
        super().__init__()
        self.pid = os.getpid()

    def read(self, ids, fields=None):
        if os.getpid() != self.pid:
            os._exit(7)
        return super().read(ids, fields)


class RaisesInTheChild(DiesInTheChild):
    def read(self, ids, fields=None):
        if os.getpid() != self.pid:
            raise RuntimeError("no file in the child")
        return super().read(ids, fields)


class ForgetsWhenPickled(Sound):
    def __getstate__(self):
        return self.__dict__ | {"_keys": ["forgotten"] * 20}


class WrongCounts(Sound):
    def __init__(self):
        super().__init__()
        self.manifest.num_samples = 21


class ChangingFingerprint(Sound):
    looks = 0

    @property
    def manifest(self):
        self.looks += 1
        return Manifest("memory", [Shard("a", 20, self.looks)])

    @manifest.setter
    def manifest(self, value):
        pass


class NoSource:
    """Lacks everything."""


def test_a_sound_source_passes():
    check_source(Sound())
    check_source(Sound(), expected=numbered_samples(20))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (WrongOrder, "in a random order|by itself|backwards"),
        (NoRepeats, "were asked for|rows"),
        (AllFields, r"fields \["),
        (WrongKeys, "by itself: '__key__' is 'another'"),
        (DiesInTheChild, "a forked child died, exit code 7"),
        (RaisesInTheChild, "a forked child failed: RuntimeError: no file in the child"),
        (ForgetsWhenPickled, "'__key__' is 'forgotten'"),
        (WrongCounts, "21 samples in"),
        (ChangingFingerprint, "two looks, two fingerprints"),
        (OneBuffer, "threads"),
        (NoSource, "NoSource lacks a part of the protocol"),
    ],
)
def test_a_broken_promise_is_noticed(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_source(broken())


def test_what_is_expected_is_compared():
    samples = numbered_samples(20)
    samples[5] = samples[5] | {"cls": b"6"}
    with pytest.raises(AssertionError, match="sample 5: 'cls' is b'5', not b'6'"):
        check_source(Sound(), expected=samples)
    with pytest.raises(AssertionError, match="20 samples, not 19"):
        check_source(Sound(), expected=samples[:19])
    expected = [dict(sample) for sample in numbered_samples(20)]
    del expected[3]["txt"], expected[3]["bin"]
    with pytest.raises(AssertionError, match="sample 3: 'txt' is b'', not None"):
        check_source(EmptyForMissing(), expected=expected)
