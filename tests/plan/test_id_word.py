"""The word of ids: a sum over a multiset, with a closed form for ranges."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.plan.id_word import MODULUS, IdWord
from tests.support.properties import examples

IDS = st.lists(st.integers(0, 2**40), max_size=30)
WORD = IdWord("0123456789abcdef", 3)
GOLDEN = 438271838953384285


def brute(word: IdWord, ids: list[int]) -> int:
    return sum(pow(word._base, i, MODULUS) for i in ids) % MODULUS


@given(ids=IDS, fingerprint=st.text(max_size=5), epoch=st.integers(0, 10))
@settings(max_examples=examples(50))
def test_the_word_is_the_sum_of_powers(ids: list[int], fingerprint: str, epoch: int) -> None:
    word = IdWord(fingerprint, epoch)
    assert word.of(np.array(ids, dtype=np.int64)) == brute(word, ids)


@pytest.mark.parametrize("limit", [4096, 2**24, 2**24 + 1, 2**28, 2**32, 2**32 + 1, 2**34, 2**36])
def test_many_ids_at_once_have_the_word_of_each_alone(limit: int) -> None:
    ids = np.random.default_rng(limit).integers(0, limit, 5_000)
    ids[:4] = 0, limit - 1, limit - 1, limit // 2
    word = IdWord("a", 0)
    assert word.of(ids) == brute(word, ids.tolist())


def test_larger_ids_after_smaller_ones_have_the_same_words() -> None:
    word = IdWord("a", 0)
    small = np.arange(600)
    before = word.of(small)
    large = np.arange(2**30, 2**30 + 600)
    assert word.of(large) == word.of_range(range(2**30, 2**30 + 600))
    assert word.of(small) == before


@given(start=st.integers(0, 2**40), count=st.integers(0, 50), more=st.integers(0, 2**62))
def test_a_range_has_the_word_of_its_ids_at_any_length(start: int, count: int, more: int) -> None:
    ids = range(start, start + count)
    assert WORD.of_range(ids) == WORD.of(np.array(ids, dtype=np.int64))
    whole = WORD.of_range(range(start, start + count + more))
    rest = WORD.of_range(range(start + count, start + count + more))
    assert whole == (WORD.of_range(ids) + rest) % MODULUS


@given(ids=IDS.filter(len), data=st.data())
@settings(max_examples=examples(50))
def test_order_and_parts_do_not_matter_and_a_change_does(
    ids: list[int], data: st.DataObject
) -> None:
    array = np.array(ids, dtype=np.int64)
    cut = data.draw(st.integers(0, len(ids)))
    word = WORD.of(array)
    assert WORD.of_parts([array[:cut], array[cut:]]) == (len(ids), word)
    assert WORD.of(np.array(data.draw(st.permutations(ids)))) == word
    assert WORD.of(array[1:]) != word
    assert WORD.of(np.append(array, array[:1])) != word
    other = array.copy()
    other[0] += 1
    assert WORD.of(other) != word


def test_other_data_and_other_epochs_have_other_words() -> None:
    ids = np.arange(10)
    keys = [("a", 0), ("a", 1), ("b", 0), ("", 0), ("a 0", 1)]
    assert len({IdWord(*key).of(ids) for key in keys}) == len(keys)


def test_the_words_are_for_ever() -> None:
    # Lines of a coverage directory are added up by later releases.
    assert WORD.of(np.arange(10)) == WORD.of_range(range(10)) == GOLDEN
    assert pickle.loads(pickle.dumps(WORD)).of(np.arange(10)) == GOLDEN


@pytest.mark.parametrize("ids", [range(0, 10, 2), range(-1, 3), range(5, 0, -1)])
def test_what_is_no_run_of_ids_is_refused(ids: range) -> None:
    with pytest.raises(ValueError, match="no run of sample ids"):
        WORD.of_range(ids)
