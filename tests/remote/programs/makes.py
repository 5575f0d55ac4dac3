"""A rank whose forked child makes what it needs itself; rank 0 is killed while it makes it."""

import os
import signal
import time

import torch.distributed as dist

from shardwise.base.process_group import group_store
from shardwise.storage import found_once

# The launcher ends the others of a killed rank.
URLS = ["s3://bucket/file"]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
found_once._MAKER_S = 0.5
dist.init_process_group("gloo")
rank = dist.get_rank()


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def make_once(what, make):
    return found_once.made_once(what, URLS, None, make).decode()


pid = os.fork()
if not pid:
    say(f"child of {rank}: {make_once('forked', lambda: b'by %d' % rank)}")
    os._exit(0)
os.waitpid(pid, 0)

store = group_store()
if rank:
    while not store.check(["making"]):
        time.sleep(0.01)


def make() -> bytes:
    if not rank:
        store.set("making", "1")
        os.kill(os.getpid(), signal.SIGKILL)
    return b"made"


say(f"{rank}: {make_once('killed', make)}")
os._exit(0)
