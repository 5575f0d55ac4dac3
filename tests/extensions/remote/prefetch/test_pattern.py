"""How a file is read is found out from the reads; jumps are never taken for a sequence."""

from __future__ import annotations

import random

import pytest

from shardwise.extensions.remote.prefetch.pattern import Pattern
from shardwise.storage.protocol import ByteRange

MB = 1 << 20
SIZE = 1000 * MB


def note(pattern, ranges, num_bytes, **options):
    """`Pattern.note` of pairs of offsets."""
    return pattern.note([ByteRange(start, stop, 0) for start, stop in ranges], num_bytes, **options)


def test_reads_behind_one_another_are_a_sequence_from_the_third_on():
    pattern = Pattern()
    readings = [note(pattern, [(i * MB, (i + 1) * MB)], SIZE) for i in range(20)]
    assert readings[:2] == ["random", "random"]
    assert set(readings[2:]) == {"sequential"}
    assert pattern.position == 20 * MB


def test_threads_that_read_pieces_out_of_turn_are_a_sequence_too():
    pattern = Pattern()
    order = [1, 0, 2, 4, 3, 5, 7, 6, 8, 10, 9, 11]
    readings = [note(pattern, [(i * MB, (i + 1) * MB)], SIZE) for i in order]
    assert set(readings[4:]) == {"sequential"}


@pytest.mark.parametrize("size", [10 * MB, 100 * MB, SIZE])
@pytest.mark.parametrize("length", [50_000, 3 * MB])
def test_reads_here_and_there_are_neither(size, length):
    rng = random.Random(size + length)
    pattern = Pattern()
    readings = []
    for _ in range(3000):
        start = rng.randrange(size - length)
        readings.append(note(pattern, [(start, start + length)], size))
    # Of a file of three reads' length there is no telling.
    if size > 4 * length:
        assert readings.count("random") >= 0.99 * len(readings)


def test_a_scan_of_headers_is_no_sequence():
    pattern = Pattern()
    readings = {note(pattern, [(i * 50_000, i * 50_000 + 1536)], SIZE) for i in range(500)}
    assert readings == {"random"}


def test_a_window_that_moves_is_seen():
    rng = random.Random(1)
    pattern = Pattern()
    readings = []
    for window in range(20):
        places = list(range(64))
        rng.shuffle(places)
        for place in places:
            start = (window * 64 + place) * 50_000
            readings.append(note(pattern, [(start, start + 48_000)], SIZE))
    assert readings.count("window") > 0.8 * len(readings)


def test_a_file_that_follows_one_that_was_read_to_its_end_is_believed_at_once():
    pattern = Pattern()
    assert note(pattern, [(512, MB)], SIZE, follows=50 * MB) == "sequential"
    assert pattern.run_bytes > 50 * MB
    other = Pattern()
    assert note(other, [(500 * MB, 501 * MB)], SIZE, follows=50 * MB) == "random"
