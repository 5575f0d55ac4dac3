"""How many blocks are on their way follows latency times bandwidth."""

from __future__ import annotations

import pytest

from shardwise.storage.flow import Flow

BLOCK = 4 << 20


def simulate(latency_s, bytes_a_s, rounds=60):
    """Blocks over a line of so much latency and bandwidth, as many in flight as the flow says."""
    now = 0.0
    flow = Flow(clock=lambda: now)
    free_at = 0.0
    in_flight = []
    sent = done = 0.0
    while len(in_flight) + rounds > 0 and rounds:
        while len(in_flight) < flow.depth(BLOCK):
            free_at = max(free_at, now + latency_s) + BLOCK / bytes_a_s
            in_flight.append(free_at)
            sent += BLOCK
        now = in_flight.pop(0)
        done += BLOCK
        flow.add(BLOCK, latency_s)
        rounds -= 1
    return flow, done / now


@pytest.mark.parametrize("latency_s", [0.001, 0.02, 0.2])
@pytest.mark.parametrize("rate", [50e6, 500e6, 2e9])
def test_the_line_is_filled_and_not_overfilled(latency_s, rate):
    flow, _ = simulate(latency_s, rate, rounds=400)
    wanted = latency_s * rate / BLOCK
    assert wanted <= flow.depth(BLOCK) <= 2 * wanted + 4


def test_it_grows_quickly_where_there_is_much_to_fill():
    _, reached = simulate(0.2, 2e9, rounds=400)
    assert reached > 0.25 * 2e9


def test_before_anything_came_there_are_two():
    assert Flow().depth(BLOCK) == 2


def test_a_new_file_begins_with_what_the_last_one_knew():
    flow, _ = simulate(0.1, 1e9)
    assert Flow(flow).depth(BLOCK) == flow.depth(BLOCK)
