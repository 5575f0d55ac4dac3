"""Ranks that were found or given in one process, held against the one that uses them."""

import copy
import sys
from types import SimpleNamespace

import pytest

import shardwise.loader.rank_check as module
from shardwise.base.errors import RankError
from shardwise.base.ranks import Ranks
from shardwise.loader.rank_check import CurrentRanks

LIGHTNING = {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_PORT": "1"}


@pytest.fixture
def group(monkeypatch):
    """Lets torch.distributed say that this process is a rank of a group, or of none."""

    def become(rank=None, world_size=None):
        distributed = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: rank is not None,
            get_rank=lambda: rank,
            get_world_size=lambda: world_size,
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", distributed)

    become()
    return become


@pytest.fixture
def travel(monkeypatch):
    """Makes what is used from then on be in another process than what was made before."""
    return lambda: monkeypatch.setattr(module, "_TOKEN", b"another process")


def pair(ranks):
    return ranks.rank, ranks.world_size


@pytest.mark.parametrize("travels", [False, True])
def test_ranks_that_were_found_follow_the_group(group, travel, travels):
    held = CurrentRanks()
    assert pair(held.certain()) == (0, 1)
    if travels:
        travel()
    group(2, 4)
    assert held.certain() == Ranks(2, 4, "torch.distributed")
    group(1, 3)
    assert pair(held.certain()) == (1, 3)
    group()  # it is over: what was found last holds
    assert pair(held.certain()) == (1, 3)


def test_what_found_nothing_looks_at_the_environment_of_the_process_it_came_to(
    group, travel, monkeypatch
):
    here, there = CurrentRanks(), CurrentRanks()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert pair(here.certain()) == (0, 1)
    travel()
    assert pair(there.certain()) == (1, 2)


@pytest.mark.parametrize(
    ("made_in", "used_in", "given", "travels", "is_refused"),
    [
        (None, (1, 4), (1, 4), True, False),  # right where it came to
        (None, (2, 4), (1, 4), True, True),
        (None, (2, 4), (1, 2), True, True),  # of a part of the ranks, but whose?
        (None, (2, 4), (0, 1), True, False),  # everybody is to read everything
        (None, (2, 4), (1, 2), False, False),  # a part of the ranks: the user's right
        (None, (2, 4), (0, 4), False, True),
        ((2, 4), (2, 4), (0, 4), False, False),  # given in sight of the group
        ((2, 4), (2, 4), (1, 2), True, False),  # a copy for the same rank
        ((2, 4), (3, 4), (1, 2), True, True),
        ((2, 4), None, (1, 2), True, False),  # nothing contradicts it
    ],
)
def test_ranks_that_were_given_are_refused_where_they_are_another_processs(
    group, travel, made_in, used_in, given, travels, is_refused
):
    group(*(made_in or ()))
    held = CurrentRanks(*given)
    if travels:
        travel()
    group(*(used_in or ()))
    if is_refused:
        with pytest.raises(
            RankError, match=rf"rank={given[0]} and world_size={given[1]} .* rank {used_in[0]} of 4"
        ):
            held.now()
    else:
        assert pair(held.certain()) == given


def test_a_rank_that_only_the_group_knows_is_asked_for_when_reading_begins(group, monkeypatch):
    for name, value in LIGHTNING.items():
        monkeypatch.setenv(name, value)
    held = CurrentRanks()
    again = copy.copy(held)
    assert held.now().world_size == 2
    with pytest.raises(RankError, match=r"WORLD_SIZE=2 .* Lightning .* trainer\.fit"):
        held.certain()
    group(1, 2)
    assert pair(again.certain()) == (1, 2)
