"""Packs are kept in a file, which is mapped."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.dataset.code_digest import held_digest
from shardwise.dataset.kept_arrays import KeptArrays, kept_or_made
from shardwise.extensions.packs.pack import _Count
from shardwise.extensions.packs.packing import Packs
from shardwise.storage.column_file import place_of


def test_what_is_kept_is_mapped_from_the_first_time_on(tmp_path):
    made = Packs(4, np.array([0, 1]), np.array([0]), *(np.array([0], np.int32) for _ in range(3)))
    place = KeptArrays(str(tmp_path), name="packs", origin="this test")
    first = kept_or_made(place, Packs, lambda: made)
    assert place_of(first.documents) is not None
    assert place_of(first.documents)[0] == str(place.paths[0])
    assert kept_or_made(place, Packs, pytest.fail).length == first.length == 4


def test_counts_of_tokens_that_were_kept_before_packs_were_an_extension_are_found():
    assert held_digest(_Count("tokens")) == "0422f40303f30fde"
