"""Counting the seconds of stages: by thread, by scope, and not at all where nobody asks."""

from __future__ import annotations

import threading

import pytest

from shardwise.base.counters import StageSeconds, spent_in


@spent_in("demux")
def find_packets():
    return "packets"


def test_seconds_are_counted_while_a_scope_is_entered_and_not_paused():
    assert find_packets() == "packets"
    with StageSeconds() as counted:
        find_packets()
        counted.is_paused = True
        with spent_in("convert"):
            find_packets()
    find_packets()
    assert list(counted.seconds) == ["demux"]


def test_a_scope_inside_another_has_its_seconds_to_itself():
    with StageSeconds() as outer:
        with StageSeconds() as inner, spent_in("convert"):
            pass
        find_packets()
    assert (list(outer.seconds), list(inner.seconds)) == (["demux"], ["convert"])


def test_an_error_passes_and_its_seconds_count():
    with StageSeconds() as counted, pytest.raises(ValueError, match="damaged"), spent_in("demux"):
        raise ValueError("damaged")
    assert list(counted.seconds) == ["demux"]


def test_another_thread_counts_nothing_here():
    with StageSeconds() as counted:
        thread = threading.Thread(target=find_packets)
        thread.start()
        thread.join()
    assert counted.seconds == {}
