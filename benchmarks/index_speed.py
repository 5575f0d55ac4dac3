"""How fast shards are indexed: members a second, and the share of a shard that is read for it.

Run: `python benchmarks/index_speed.py [DIRECTORY]`. Writes some 700 MB of shards into the directory
(default: a temporary one) and indexes each five times with a warm page cache; CPU time of the best
run counts, on one core.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.scan.walk import Scan
from shardwise.storage import open_file

RUNS = 5

# name: format, samples, payload bytes by field, whether times need a PAX header a member.
SHARDS = {
    "tiny, ustar": (tarfile.USTAR_FORMAT, 100_000, {"bin": 100, "cls": 1, "json": 20}, False),
    "tiny, pax": (tarfile.PAX_FORMAT, 40_000, {"bin": 100, "cls": 1, "json": 20}, True),
    "long names, gnu": (tarfile.GNU_FORMAT, 40_000, {"bin": 100, "cls": 1}, False),
    "50 kB": (tarfile.USTAR_FORMAT, 3000, {"jpg": 50_000}, False),
    "50 kB and a label": (tarfile.USTAR_FORMAT, 3000, {"jpg": 50_000, "cls": 1}, False),
}


def write(path: Path, name: str) -> int:
    """Write a shard; returns its number of members."""
    how, num_samples, fields, has_times = SHARDS[name]
    directory = "a-directory-with-a-long-name/" * 4 if name.startswith("long") else ""
    payloads = {field: bytes(size) for field, size in fields.items()}
    with tarfile.open(path, "w", format=how) as tar:
        for i in range(num_samples):
            for field, data in payloads.items():
                info = tarfile.TarInfo(f"{directory}{i:08d}.{field}")
                info.size = len(data)
                info.mtime = i + 0.5 if has_times else 0
                tar.addfile(info, io.BytesIO(data))
    return num_samples * len(fields)


def share_read(path: Path) -> float:
    file = open_file(str(path))
    num_bytes = file.stat().num_bytes
    scan = Scan(file, num_bytes, url=str(path))
    for _ in scan.runs():
        pass
    return scan.num_bytes_read / num_bytes


def main(directory: Path) -> None:
    print(f"{'shard':20} {'members':>9} {'members/s':>11} {'ns/member':>10} {'share read':>11}")
    for name in SHARDS:
        path = directory / "shard.tar"
        num_members = write(path, name)
        best = float("inf")
        for _ in range(RUNS):
            begin = time.process_time()
            index = build_index(str(path))
            best = min(best, time.process_time() - begin)
        assert index.num_samples * len(index.fields) == num_members
        rate = num_members / best
        print(
            f"{name:20} {num_members:9,} {rate:11,.0f} {1e9 / rate:10,.0f} {share_read(path):11.1%}"
        )
        path.unlink()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
