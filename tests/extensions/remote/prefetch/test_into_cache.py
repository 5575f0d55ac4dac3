"""Blocks fetched ahead into the cache: each once, by long requests, and none where it is no use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from shardwise.extensions.remote.prefetch.into_cache import CacheReadAhead
from shardwise.extensions.remote.prefetch.sequential import Readable
from shardwise.storage.protocol import ByteRange

MIB = 1 << 20
BLOCK = 4 * MIB


def join_all() -> None:
    """One request begins the next one: wait until none is in flight."""
    while threads := [t for t in threading.enumerate() if t.name == "shardwise-cache"]:
        threads[0].join(60)
        assert not threads[0].is_alive()


class Files:
    """Files of one length behind one another, a cache of their blocks, and a reader of them.

    Args:
        num_blocks: of each file.
        most_blocks: in the cache.
        is_busy: whether another process fetches all blocks, and never ends.
    """

    def __init__(
        self, num_blocks: int = 256, *, most_blocks: int = 10_000, is_busy: bool = False
    ) -> None:
        self.num_bytes = num_blocks * BLOCK
        self.is_busy = is_busy
        self.held: set[tuple[str, int]] = set()
        self.asked: list[tuple[str, range]] = []
        self.ahead = CacheReadAhead(
            lambda name, number: (name, number) in self.held,
            block_bytes=BLOCK,
            most_blocks=most_blocks,
        )

    def readable(self, number: int) -> Readable:
        name = str(number)

        def fetch(numbers: Sequence[int], arrived: Callable[[int, float], None]) -> bool:
            assert isinstance(numbers, range)
            self.asked.append((name, numbers))
            for each in numbers if not self.is_busy else ():
                self.held.add((name, each))
                arrived(BLOCK, 0.001)
            return True

        return Readable(name, self.num_bytes, fetch, lambda: self.readable(number + 1))

    def read(self, number: int, start: int, length: int = MIB) -> bool:
        """Read a part of a block; whether the next read is to be noted."""
        block = (str(number), start // BLOCK)
        had_to_wait = block not in self.held
        self.held.add(block)
        part = ByteRange(start, start + length, 0)
        is_noted = self.ahead.note(self.readable(number), [part], had_to_wait=had_to_wait)
        join_all()
        return is_noted

    def read_on(self, number: int = 0, *, stop: int | None = None) -> None:
        for at in range(0, stop or self.num_bytes, MIB):
            self.read(number, at)


def test_each_block_is_asked_for_once_and_many_at_a_time() -> None:
    files = Files()
    files.read_on()
    numbers = [n for name, each in files.asked if name == "0" for n in each]
    assert numbers == sorted(set(numbers))
    assert set(range(3, 256)) <= set(numbers)
    long = [len(each) for name, each in files.asked if name == "0" and each.start > 50]
    assert min(long[:-1]) >= 8


@pytest.mark.parametrize(("most_blocks", "ahead"), [(32, 8), (10_000, 48)])
def test_what_is_ahead_takes_a_quarter_of_a_small_cache(most_blocks: int, ahead: int) -> None:
    files = Files(most_blocks=most_blocks)
    most = 0
    for at in range(0, 512 * MIB, MIB):
        files.read(0, at)
        most = max(most, *(each.stop - at // BLOCK for _, each in files.asked), 0)
    assert ahead // 2 < most <= ahead + 1


def test_the_next_files_are_fetched_before_the_end_of_this_one() -> None:
    files = Files(16)
    files.read_on(stop=files.num_bytes - MIB)
    assert {"0", "1"} <= {name for name, _ in files.asked}
    first = [n for name, each in files.asked if name == "1" for n in each]
    assert first == list(range(16))
    before = len(files.asked)
    # Its reader lacks nothing, and has the files behind it fetched.
    files.read_on(1)
    assert all(name not in ("0", "1") for name, _ in files.asked[before:])
    assert "2" in {name for name, _ in files.asked}


def test_reads_at_random_fetch_nothing_and_are_soon_not_noted() -> None:
    files = Files()
    places = [(at * 37) % 250 * BLOCK for at in range(100)]
    noted = [files.read(0, at, 1000) for at in places]
    assert all(noted)
    noted = [files.read(0, at, 1000) for at in places]
    assert not noted[-1]
    assert files.asked == []


def test_a_file_that_is_cached_from_somewhere_on_is_soon_not_noted() -> None:
    files = Files()
    files.held = {("0", number) for number in range(8, 256)}
    noted = [files.read(0, at) for at in range(0, 200 * MIB, MIB)]
    assert noted[0]
    assert not noted[-1]
    assert all(each.stop <= 8 for _, each in files.asked)


def test_a_gap_between_cached_blocks_is_filled_though_it_is_short() -> None:
    files = Files()
    files.read_on(stop=100 * MIB)
    start = max(each.stop for _, each in files.asked)
    assert start > 25
    files.held |= {("0", number) for number in range(start, 256)} - {
        ("0", start + 2), ("0", start + 3),
    }  # fmt: skip
    files.asked.clear()
    for at in range(100 * MIB, 120 * MIB, MIB):
        files.read(0, at)
    assert [each for _, each in files.asked] == [range(start + 2, start + 4)]


def test_blocks_that_another_process_fetches_are_asked_for_once() -> None:
    files = Files(is_busy=True)
    for at in range(0, 100 * MIB, MIB):
        files.read(0, at)
    numbers = [n for _, each in files.asked for n in each]
    assert numbers
    assert len(numbers) == len(set(numbers))


def test_a_request_that_fails_is_followed_by_none_until_the_next_read() -> None:
    files = Files()
    files.read_on(stop=20 * MIB)
    files.asked.clear()
    source = files.readable(0)

    def fail(numbers: Sequence[int], arrived: Callable[[int, float], None]) -> bool:
        files.asked.append(("0", range(numbers[0], numbers[-1] + 1)))
        return False

    for at in range(20 * MIB, 60 * MIB, MIB):
        before = len(files.asked)
        part = ByteRange(at, at + MIB, 0)
        files.ahead.note(source._replace(fetch=fail), [part], had_to_wait=True)
        join_all()
        assert len(files.asked) - before <= 2
    assert files.asked


@pytest.mark.parametrize("is_whole", [True, False])
def test_many_files_read_in_turn_share_sixteen_threads(is_whole: bool) -> None:
    files, may_end = Files(), threading.Event()
    asked: list[str] = []

    def readable(number: int) -> Readable:
        def fetch(numbers: Sequence[int], arrived: Callable[[int, float], None]) -> bool:
            asked.append(str(number))
            return may_end.wait(60) and is_whole

        return Readable(str(number), files.num_bytes, fetch)

    try:
        for at in range(0, 100 * MIB, BLOCK):
            for number in range(32):
                part = ByteRange(at, at + BLOCK, 0)
                files.ahead.note(readable(number), [part], had_to_wait=True)
        assert len(asked) == 16
    finally:
        may_end.set()
        join_all()
    # Each that ended has begun another one, unless it failed.
    assert (len(asked) > 16) is is_whole


def test_a_thread_that_can_not_begin_costs_its_request_only(monkeypatch) -> None:
    files = Files()
    files.read_on(stop=20 * MIB)
    before, tries = len(files.asked), []

    def refuse(thread: threading.Thread) -> None:
        tries.append(thread)
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for at in range(20 * MIB, 100 * MIB, MIB):
            files.read(0, at)
    assert len(tries) > 16
    assert len(files.asked) == before
    files.read_on(stop=120 * MIB)
    assert files.asked[-1][1].stop > 30


def test_the_next_file_is_looked_for_near_the_end_only() -> None:
    files, looked = Files(), []
    source = files.readable(0)
    source = source._replace(next_file=lambda: looked.append(1))
    for at in range(0, files.num_bytes, MIB):
        files.ahead.note(source, [ByteRange(at, at + MIB, 0)], had_to_wait=False)
        join_all()
        if at < files.num_bytes - 200 * MIB:
            assert not looked
    assert looked
