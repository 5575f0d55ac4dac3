"""The memory of decoders: who waits for whom, and that nobody waits for ever."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from shardwise.engine.batch.prefetch import PictureMemory, decoder_bytes, picture_memory
from shardwise.extensions.media.files import frames as frames_module
from tests.support.forks import in_child
from tests.support.media import decode, zeroed

PATIENCE_S = 60


class Holder(threading.Thread):
    """A thread that holds bytes until it is let go."""

    def __init__(self, memory: PictureMemory, num_bytes: int) -> None:
        super().__init__(daemon=True)
        self.memory, self.num_bytes = memory, num_bytes
        self.inside, self.may_go = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self.memory.hold(self.num_bytes):
            self.inside.set()
            self.may_go.wait(PATIENCE_S)

    def is_inside(self) -> bool:
        return self.inside.wait(PATIENCE_S)

    def end(self) -> None:
        self.may_go.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


def queued(memory: PictureMemory, num_bytes: int) -> Holder:
    """A holder that stands in the queue."""
    before = len(memory._waiting)
    holder = Holder(memory, num_bytes)
    while len(memory._waiting) == before and not holder.inside.wait(0.001):
        pass
    return holder


def test_decoders_begin_while_they_fit_and_in_the_order_of_their_coming():
    memory = PictureMemory(100)
    first, second = Holder(memory, 60), Holder(memory, 40)
    assert first.is_inside()
    assert second.is_inside()
    large = queued(memory, 80)
    second.end()
    # 40 bytes are free: enough for the small one, whose turn it is not.
    small = queued(memory, 10)
    assert not large.inside.is_set()
    assert not small.inside.is_set()
    first.end()
    assert large.is_inside()
    assert small.is_inside()
    large.end()
    small.end()
    assert memory._held == 0


def test_one_decoder_is_let_in_whatever_it_takes():
    memory = PictureMemory(100)
    with memory.hold(10**12):
        other = queued(memory, 1)
        assert not other.inside.is_set()
    assert other.is_inside()
    other.end()


class Owner:
    pass


def test_a_limit_holds_as_long_as_its_owner_and_never_keeps_all_out():
    memory = PictureMemory(100)
    first, second = Owner(), Owner()
    memory.limit(first, 50)
    memory.limit(second, -7)
    holder = Holder(memory, 40)
    assert holder.is_inside()
    waiting = queued(memory, 10)
    assert not waiting.inside.is_set()
    # The lowest one counts, and a new one of the same owner replaces it.
    memory.limit(second, 60)
    assert waiting.is_inside()
    large = queued(memory, 30)
    assert not large.inside.is_set()
    del first
    gc.collect()
    memory.limit(second, 80)
    assert large.is_inside()
    for each in (holder, waiting, large):
        each.end()
    assert memory.peak(second) == 80


def test_a_lifted_limit_lets_in_who_waits_for_it():
    memory, owner = PictureMemory(100), Owner()
    memory.limit(owner, 10)
    holder = Holder(memory, 40)
    assert holder.is_inside()
    waiting = queued(memory, 40)
    assert not waiting.inside.is_set()
    memory.lift(owner)
    assert waiting.is_inside()
    for each in (holder, waiting):
        each.end()
    assert not memory._passes
    memory.lift(owner)  # nothing is left to lift


def test_the_peak_of_a_pass_counts_who_waits_up_to_the_bound():
    memory, first, second = PictureMemory(100), Owner(), Owner()
    assert memory.peak(first) == 0
    memory.limit(first, 100)
    with memory.hold(30):
        memory.limit(second, 100)
    assert memory.peak(first) == memory.peak(second) == 30
    memory.lift(second)
    holder = Holder(memory, 60)
    assert holder.is_inside()
    others = [queued(memory, 60), queued(memory, 60)]
    assert memory.peak(first) == 100
    for each in (holder, *others):
        each.end()
    assert memory._waited_for == 0
    # The next pass of the same owner begins at what is held then.
    memory.limit(second, 100)
    assert memory.peak(second) == 0


def test_an_error_inside_and_an_interrupted_wait_leave_the_way_free(monkeypatch):
    memory = PictureMemory(100)
    with pytest.raises(ZeroDivisionError), memory.hold(100):
        raise ZeroDivisionError
    holder = Holder(memory, 100)
    assert holder.is_inside()

    def interrupted(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(memory._changed, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt), memory.hold(50):
        pass
    assert not memory._waiting
    behind = queued(memory, 50)
    holder.end()
    assert behind.is_inside()
    behind.end()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_wait_for_decoders_of_its_parent():
    holder = Holder(picture_memory(), 1 << 40)
    assert holder.is_inside()

    def hold():
        with picture_memory().hold(1 << 40):
            return "held"

    assert in_child(hold) == "held"
    holder.end()


def test_decoding_holds_what_its_pictures_take_and_frees_it_after_an_error(
    media_files, monkeypatch
):
    seen = []

    class Seen(PictureMemory):
        def hold(self, num_bytes):
            seen.append(num_bytes)
            return super().hold(num_bytes)

    memory = Seen(1 << 20)
    monkeypatch.setattr(frames_module, "picture_memory", lambda: memory)
    data = media_files.read("b_frames")
    decode(data, [3, 4])
    assert seen == [decoder_bytes(120, 160)]
    for number in range(6):
        data = zeroed(data, number, keep=5)
    with pytest.raises(ValueError, match="frame"):
        decode(data, [3, 4])
    assert memory._held == 0
