"""Slots are reused when nobody has their arrays, here or in the process that got them."""

from __future__ import annotations

import gc
import os
import socket

import numpy as np
import pytest

from shardwise.engine.processes.shared_memory import map_without_file
from shardwise.engine.processes.slots import MAX_HOLDERS, SlotPool, lend
from shardwise.engine.processes.transport import message_slots, pack, receive, send


@pytest.fixture
def pool():
    made = SlotPool(max_idle=2)
    yield made
    made.close()


def test_a_slot_is_reused_after_its_last_array_is_gone(pool):
    first = pool.take(1000)
    row = pool.lend(first)[10:20]
    row[:] = 7
    other = pool.take(1000)
    assert other is not first
    assert (row == 7).all()
    del row
    gc.collect()
    assert pool.take(900) is first


def test_the_smallest_slot_that_fits_is_taken(pool):
    small, large = pool.take(100), pool.take(10_000)
    small.free()
    large.free()
    assert pool.take(50) is small
    assert pool.take(50) is large


def test_slots_that_are_too_small_make_room_for_larger_ones(pool):
    small = pool.take(100)
    small.free()
    assert pool.take(10_000).memory.nbytes == 10_000
    assert small not in pool._slots


def test_no_more_free_slots_are_kept_than_was_said(pool):
    lent = [pool.lend(pool.take(100)) for _ in range(5)]
    assert len(pool._slots) == 5
    lent.clear()
    gc.collect()
    assert len(pool._slots) == 2
    pool.close()
    assert not pool._slots


def test_an_abandoned_slot_never_comes_again_and_its_file_stays_open_for_who_has_it(pool):
    slot = pool.take(100)
    array = pool.lend(slot)
    slot.abandon()
    del array
    gc.collect()
    assert pool.take(100) is not slot
    assert os.fstat(slot.descriptor).st_size > 100


def test_what_a_fork_has_inherited_is_not_written_again(pool):
    slot = pool.take(100)
    array = pool.lend(slot)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    del array
    gc.collect()
    assert pool.take(100) is not slot


def sent(slots, value):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        packed = pack(value, slots)
        send(ours, packed)
        message = receive(theirs)
    assert message is not None
    return packed.slot, message[0]


def test_messages_are_packed_into_the_same_memory_once_the_receiver_has_dropped_them():
    slots = message_slots()
    rows = np.arange(50_000)
    first, got = sent(slots, {"rows": rows})
    second, other = sent(slots, [rows + 1])
    assert first is not second
    assert (got["rows"] == rows).all()
    del got
    gc.collect()
    third, last = sent(slots, [rows + 2])
    assert third is first
    assert (other[0] == rows + 1).all()
    assert (last[0] == rows + 2).all()


def test_a_message_that_is_never_sent_leaves_its_memory_free():
    slots = message_slots()
    packed = pack(np.arange(50_000), slots)
    packed.drop()
    assert pack(np.arange(50_000), slots).slot is packed.slot


def test_small_arrays_of_a_large_message_do_not_keep_its_memory():
    slots = message_slots()
    slot, (small, large) = sent(slots, [np.arange(10), np.arange(50_000)])
    del large
    gc.collect()
    assert pack(np.arange(50_000), slots).slot is slot
    small += 1
    assert small.tolist() == list(range(1, 11))


def test_beyond_the_limit_of_mapped_messages_they_are_copied():
    slots = message_slots()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        packed = pack(np.arange(50_000), slots)
        send(ours, packed)
        maps = [None] * 4096
        got, _ = receive(theirs, maps)
    assert len(maps) == 4096
    assert pack(np.arange(50_000), slots).slot is packed.slot  # nobody has its memory mapped
    assert (got == np.arange(50_000)).all()


def test_a_slot_that_several_processes_hold_is_free_when_each_of_them_freed_it():
    slot = SlotPool(max_idle=1).take(100)
    slot.memory[:100] = 7
    slot.hold([1, 3])
    lent = [
        lend(
            map_without_file(slot.descriptor, is_private=True),
            state=map_without_file(slot.descriptor)[holder - MAX_HOLDERS :],
        )
        for holder in (1, 3)
    ]
    lent[0][:] = 5
    assert lent[1][:100].tolist() == slot.memory[:100].tolist() == [7] * 100
    first = slot.state
    del lent[0]
    assert slot.state == first != 0
    lent.clear()
    assert slot.state == 0
