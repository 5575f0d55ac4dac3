"""Files and functions of this library that a remote sample passes on its way to a batch.

Counted by `sys.setprofile` over three batches of 32 in the middle of an epoch, two fields, from an
S3 gateway on loopback. `--list DIR` writes what each row passed. Run:

    python -m benchmarks.trip [--list DIR]
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import threading
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

import shardwise as sw
from shardwise.sources.tar.index.build import build_indexes
from shardwise.storage import StorageOptions
from tests.support.remote_shards import put_shards
from tests.support.servers import s3_gateway

SOURCE = f"{Path(sw.__file__).parent}/"
SKIPPED, COUNTED = 6, 3
ROWS = (
    ("shuffled, no cache", "full", False),
    ("sequence, no cache", False, False),
    ("shuffled, cache", "full", True),
    ("sequence, cache", False, True),
)


class Trip:
    """What the threads pass that begin after this was made, and this one."""

    def __init__(self) -> None:
        self.passed: set[tuple[str, str]] = set()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            self.passed.add((code.co_filename.removeprefix(SOURCE), code.co_qualname))

    def of(self, data: sw.Dataset, *, shuffle: Any, executor: str) -> set[tuple[str, str]]:
        """The files and functions that three batches pass, after six others."""
        with sw.DataLoader(
            data, batch_size=32, shuffle=shuffle, rank=0, world_size=1, executor=executor,
            output="numpy", num_threads=2 if executor == "threads" else None,
        ) as loader:  # fmt: skip
            batches = iter(loader)
            list(islice(batches, SKIPPED))
            self.passed.clear()
            list(islice(batches, COUNTED))
            return set(self.passed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", type=Path, help="a directory for what each row passed")
    given = parser.parse_args()
    table = Table("executor", "order", "files", "functions", "of storage", box=None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "user")
        (folder / "s3").mkdir()
        with s3_gateway(folder / "s3") as s3:
            # Before the thread of the event loop begins.
            trip = Trip()
            urls = put_shards(s3, "trip", [400] * 6, num_bytes=20_000)
            build_indexes(urls, options=StorageOptions(config=s3.config))
            for executor in ("inline", "threads"):
                for row, shuffle, is_cached in ROWS:
                    cache = None
                    if is_cached:
                        cache = sw.CacheSettings(folder / executor / row, block_bytes=64 << 10)
                    data = sw.tar(urls, storage=s3.config, cache=cache).decode(cls=sw.text())
                    # Files of the row before are closed now, not during this one.
                    gc.collect()
                    found = trip.of(data, shuffle=shuffle, executor=executor)
                    storage = {each for each in found if each[0].startswith("storage/")}
                    table.add_row(
                        executor, row, str(len({file for file, _ in found})), str(len(found)),
                        f"{len({file for file, _ in storage})} and {len(storage)}",
                    )  # fmt: skip
                    if given.list:
                        given.list.mkdir(exist_ok=True)
                        lines = "".join(f"{file}: {name}\n" for file, name in sorted(found))
                        (given.list / f"{executor}, {row}.txt").write_text(lines)
    Console().print(table)


if __name__ == "__main__":
    main()
