"""Memory stays flat: a large shard and one of a million samples cost the same, more or less."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.support.python_code import printed_by
from tests.support.raw_tars import END, header, member

# Linux only: the anonymous memory of the process, at its highest, sampled by a thread.
MEASURE = """
import sys, threading
import numpy as np
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.source import TarSource

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

before, highest, done = anonymous(), 0, threading.Event()
def watch():
    global highest
    while not done.wait(0.005):
        highest = max(highest, anonymous())
watcher = threading.Thread(target=watch)
watcher.start()
build_indexes(sys.argv[1], jobs=1, digests=sys.argv[2] == "digests")
source = TarSource(sys.argv[1])
num_samples = source.manifest.num_samples
for start in range(0, num_samples, max(1, num_samples // 50)):
    source.read(np.arange(start, min(start + 64, num_samples)), ("cls",))
done.set()
watcher.join()
print(num_samples, max(highest, anonymous()) - before)
"""


def measure(path, *options: str) -> tuple[int, int]:
    """Samples of the shard, and the KiB that indexing and reading it took at most."""
    num_samples, kib = map(int, printed_by(MEASURE, path, *options).split())
    return num_samples, kib


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize(
    ("count", "mib"), [(250_000, 60), pytest.param(1_000_000, 150, marks=pytest.mark.long)]
)
def test_a_shard_of_many_samples_is_indexed_and_read_in_little_memory(tmp_path, count, mib):
    path = tmp_path / "x.tar"
    # Without payloads, to spare the disk: half a gigabyte of headers for a million.
    plain = np.frombuffer(member(b"00000000.cls", b""), np.uint8)
    zeros = int(plain[148:154].tobytes(), 8)
    with path.open("wb") as file:
        for start in range(0, count, 10_000):
            members = np.tile(plain, (10_000, 1))
            digits = np.arange(start, start + 10_000)[:, None] // 10 ** np.arange(7, -1, -1) % 10
            members[:, :8] += digits.astype(np.uint8)
            checksums = (zeros + digits.sum(axis=1))[:, None] // 8 ** np.arange(5, -1, -1) % 8
            members[:, 148:154] = checksums + ord("0")
            file.write(members.tobytes())
        file.write(END)
    num_samples, kib = measure(path, "")
    path.unlink()
    assert num_samples == count
    assert kib < mib << 10


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize(
    ("count", "digests"),
    [(21, ""), (4, "digests"), pytest.param(21, "digests", marks=pytest.mark.long)],
)
def test_a_shard_of_a_gibibyte_is_indexed_and_read_in_little_memory(tmp_path, count, digests):
    path = tmp_path / "x.tar"
    size = 50 << 20
    with path.open("wb") as file:
        for i in range(count):
            file.write(header(b"%d.bin" % i, size))
            file.seek(size, 1)
            file.write(member(b"%d.cls" % i, b"7"))
        file.write(END)
    num_samples, kib = measure(path, digests)
    assert num_samples == count
    assert kib < 60 << 10
