"""Generators for decoders: keyed by (seed, epoch, sample), and cheap to make.

What a decoder draws depends on these three alone: not on the worker, the batch or the cluster (I3,
I5). Two fields of a sample get equal generators, so that an image and its mask are cropped alike;
decoders with another `stream` draw other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from shardwise.plan.permute import mix

# Sets the keys of decoders apart from whatever else is mixed from seed and epoch.
_DECODERS = 0xDEC0DE


def seeded_generator(sample_id: int, word: int) -> np.random.Generator:
    """A generator for a function of the user's, by 64 bits of an id and 64 of a key.

    The id is taken as it is: no two samples share a generator. A seed sequence, not the bare key,
    so that the user may spawn() more generators from it.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(sample_id << 64 | word)))


@dataclass(slots=True)
class SampleKeys:
    """Makes the generators of one epoch's samples; for one thread."""

    seed: int = 0
    epoch: int = 0
    _words: dict[int, int] = field(default_factory=dict, init=False)

    def generator(self, sample_id: int, stream: int = 0) -> np.random.Generator:
        """The generator of a sample, by its id in the source: a new object at each call (3 us)."""
        word = self._words.get(stream)
        if word is None:
            word = self._words[stream] = mix(self.seed, self.epoch, _DECODERS, stream)
        # numpy's stubs know its own seed sequence only; it takes any of the protocol.
        key: Any = _SampleKey(sample_id, word)
        return np.random.Generator(np.random.Philox(key))


class _SampleKey(ISpawnableSeedSequence):
    """The 128 bits of a Philox key as they are: numpy's seed sequence would take 7 us more.

    Half of them are the sample's id, so no two samples share them. `spawn` is a seed sequence's.
    """

    __slots__ = ("_children", "_sample_id", "_word")

    def __init__(self, sample_id: int, word: int) -> None:
        self._sample_id = sample_id
        self._word = word
        self._children: np.random.SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """The words of the key, which is all that Philox needs."""
        if n_words == 2 and dtype is np.uint64:
            return np.array((self._sample_id, self._word), dtype=np.uint64)
        return self._sequence().generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> Any:
        """Seed sequences of new generators, each with different numbers."""
        return self._sequence().spawn(n_children)

    def _sequence(self) -> np.random.SeedSequence:
        if self._children is None:
            self._children = np.random.SeedSequence(self._sample_id << 64 | self._word)
        return self._children
