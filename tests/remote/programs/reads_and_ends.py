"""Reads remote data and ends in one of many ways: `reads_and_ends.py WAY URL...`."""

from __future__ import annotations

import multiprocessing
import sys
import threading


def read(url: str) -> None:
    """Read a whole file, in pieces that come in sequence."""
    from shardwise.storage import open_file

    file = open_file(url)
    num_bytes = file.stat().num_bytes
    for begin in range(0, num_bytes, 1 << 20):
        file.read(begin, min(1 << 20, num_bytes - begin))


def read_half(url: str) -> None:
    """Leave blocks on their way that nobody asked for yet."""
    from shardwise.storage import open_file

    file = open_file(url)
    file.stat()
    for begin in range(0, 20 << 20, 1 << 20):
        file.read(begin, 1 << 20)


def read_for_ever(url: str) -> None:
    """Read in a thread that nobody ends."""
    begun = threading.Event()

    def go_on() -> None:
        import shardwise as sw

        while True:
            try:
                read(url)
            except sw.StorageError:
                return
            begun.set()

    threading.Thread(target=go_on, daemon=True).start()
    begun.wait()


def load(urls: list[str], **options: int) -> object:
    """A loader that has given one batch and is left open."""
    import shardwise as sw

    data = sw.tar(urls)
    loader = sw.DataLoader(data, batch_size=4, rank=0, world_size=1, output="numpy", **options)
    batches = iter(loader)
    next(batches)
    return batches


def read_in_spawned(url: str) -> None:
    """A process of multiprocessing, which ends without what an interpreter does at its end."""
    process = multiprocessing.get_context("spawn").Process(target=read, args=(url,))
    process.start()
    process.join()
    assert process.exitcode == 0


def load_in_torch(urls: list[str]) -> None:
    """A worker of torch's own loader, which ends as a spawned process does."""
    from torch.utils.data import DataLoader

    import shardwise as sw

    data = sw.torch.IterableDataset(sw.tar(urls), batch_size=4, rank=0, world_size=1)
    loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert sum(1 for _ in loader)
    # torch does not wait for its queue's thread. Where the interpreter ends while that thread frees
    # the queue's semaphore, Python's resource tracker warns of a leak, whoever wrote the dataset.
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join()


if __name__ == "__main__":
    way, *urls = sys.argv[1:]
    if way in ("plain", "exit", "raise"):
        read(urls[0])
    if way == "exit":
        sys.exit(7)
    if way == "raise":
        raise RuntimeError("the end")
    if way == "ahead":
        read_half(urls[0])
    if way == "thread":
        read_for_ever(urls[0])
    if way == "threads":
        kept = load(urls, num_threads=2)
    if way == "processes":
        kept = load(urls, num_workers=2)
    if way == "spawned":
        read_in_spawned(urls[0])
    if way == "torch":
        load_in_torch(urls)
