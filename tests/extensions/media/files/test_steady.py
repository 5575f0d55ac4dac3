"""Long use: memory stays where it is, and a fork after decoding decodes rightly."""

from __future__ import annotations

import os
import sys

import pytest

import shardwise as sw
from tests.support.media import H264
from tests.support.python_code import printed_by

# Linux only: the anonymous memory of the process and of its children, after some clips and at last.
CLIPS = """
import sys
import shardwise as sw

def anonymous(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

def all_of():
    with open("/proc/self/task/{}/children".format(__import__("os").getpid())) as file:
        return anonymous("self") + sum(map(anonymous, file.read().split()))

def main(url, executor, warm, epochs):
    decoder = sw.video(4, stride=2, start="random", size=64)
    data = sw.tar(url).decode(mp4=decoder)
    with sw.DataLoader(
        data, batch_size=10, rank=0, world_size=1, executor=executor,
        **({"num_threads": 2} if executor == "threads" else {"num_workers": 2}),
    ) as loader:
        seen = 0
        for epoch in range(warm + epochs):
            for batch in loader:
                seen += len(batch["mp4"])
            if epoch == warm - 1:
                before, from_here = all_of(), seen
        print(seen - from_here, all_of() - before)

main(*sys.argv[1:3], *map(int, sys.argv[3:]))
"""

# Each child decodes other frames than its parent just did.
FORKS = """
import os, sys
import numpy as np
import shardwise as sw

with open(sys.argv[1], "rb") as file:
    data = file.read()
def clip(start):
    return sw.video(4, start=start, size=64)(data)
expected = {start: clip(start) for start in range(0, 70, 7)}
for number in range(int(sys.argv[2])):
    start = number % 10 * 7
    clip(35)
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(clip(start), expected[start]) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, number
print("right")
"""


@pytest.fixture
def shard(media_files, tmp_path):
    with sw.TarWriter(tmp_path / "v.tar") as writer:
        for number in range(10):
            name = f"steady{number}.mp4"
            path = media_files.make(name, H264 + f"-g {10 + number}")
            writer.write({"__key__": str(number), "mp4": path.read_bytes()})
    return tmp_path / "v.tar"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_memory_grows_by_less_than_20_mb_over_2000_clips(shard, executor):
    options = (shard, executor, 30, 200)
    count, kib = map(int, printed_by(CLIPS, *options, timeout_s=1200).split())
    assert count == 2000
    assert kib < 20_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_after_decoding_decodes_the_same_frames(media_files):
    assert printed_by(FORKS, media_files.path("b_frames"), 4) == "right"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_fifty_forks_after_decoding_decode_the_same_frames(media_files):
    assert printed_by(FORKS, media_files.path("b_frames"), 50) == "right"
