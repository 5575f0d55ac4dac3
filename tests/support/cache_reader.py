"""A program that reads files through a cache: what the tests of the cache run, and kill.

Its argument is a JSON document: `folder` holds the files, `cache` the arguments of CacheSettings,
`names` the files in the order of reading, `piece` the bytes a read, `epochs`; `config` is that of
an S3 server with the same files, if it reads them there. It prints `ready`, waits for a line on
its standard input if `waits` is set, reads everything, compares it with the files themselves, and
prints the counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from shardwise.extensions.remote.cache import CachedFile, cache_of  # noqa: E402
from shardwise.storage import IO_COUNTS, File, FilePool, StorageOptions  # noqa: E402
from shardwise.storage.options import CacheSettings  # noqa: E402
from tests.support.counted_file import CountedFile  # noqa: E402


def start(**document: Any) -> subprocess.Popen[str]:
    """Start the program; the caller ends it."""
    return subprocess.Popen(
        [sys.executable, __file__, json.dumps(document)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 120) -> dict[str, int]:
    """Wait for its end; its counts."""
    output, errors = process.communicate(timeout=timeout)
    assert process.returncode == 0, errors
    counts: dict[str, int] = json.loads(output.splitlines()[-1])
    return counts


def main(document: dict[str, Any]) -> None:
    folder = Path(document["folder"])
    settings = CacheSettings(**document["cache"])
    # What is late on a loaded machine must not be asked for twice.
    options = StorageOptions(config=document.get("config", {}), cache=settings, hedge=False)
    pool = FilePool(options=options)
    piece = document.get("piece", 30_000)
    print("ready", flush=True)
    if document.get("waits"):
        sys.stdin.readline()
    for _ in range(document.get("epochs", 1)):
        for name in document["names"]:
            url = f"s3://{document.get('bucket', 'bucket')}/{name}"
            if "config" in document:
                file: File = pool.get(url)
            else:
                counted = CountedFile(url, folder / name, folder / "log")
                file = CachedFile(counted, cache_of(settings))
            want = (folder / name).read_bytes()
            for at in range(0, len(want), piece):
                length = min(piece, len(want) - at)
                if file.read(at, length) != want[at : at + length]:
                    sys.exit(f"wrong bytes of {name} at {at}")
    print(json.dumps(IO_COUNTS.snapshot()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
