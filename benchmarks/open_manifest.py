"""What opening many shards costs: shard by shard, and by a manifest file.

    python benchmarks/open_manifest.py --shards 10000 --shards 100000 --listed 1000000

Each line is a process of its own, in which the library is imported already: seconds, CPU seconds,
the memory that opening added, the pickled loader. The shards of `--shards` are real files of two
samples; `--listed` writes a manifest of shards that are nowhere, serves it by HTTP, and counts the
requests. Files are in the page cache; of a network file system, seconds are another matter.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw
from shardwise.sources.manifest import Manifest
from shardwise.sources.shard_names import NumberedNames, ShardNames
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.manifest_file import ManifestFile, encode
from shardwise.sources.tar.index.merge import merge_indexes

_MEASURED = """
import json, pickle, resource, sys, time
import numpy as np
import shardwise as sw
from shardwise.storage import IO_COUNTS
import shardwise.sources.tar.source, shardwise.extensions.remote.remote_file, shardwise.torch

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

urls = sys.argv[1]
before, began, cpu = resident(), time.perf_counter(), time.process_time()
data = sw.tar(urls)
loader = sw.DataLoader(
    data, batch_size=64, shuffle="window", rank=0, world_size=8, num_workers=0, output="numpy"
)
len(loader)
opened = time.perf_counter() - began, time.process_time() - cpu, resident() - before
requests = IO_COUNTS.snapshot()["requests"]
began = time.perf_counter()
loader.plan.indices(0, 0, 0)
first = time.perf_counter() - began
began = time.perf_counter()
for _ in range(10):
    loader.state_dict()
state = (time.perf_counter() - began) / 10
size = len(pickle.dumps(loader))
print(json.dumps({
    "s": opened[0], "cpu_s": opened[1], "MB": opened[2] / 1e6, "requests": requests,
    "first_line_s": first, "state_ms": state * 1e3, "pickle_kB": size / 1e3,
    "shards": len(data.manifest.shards),
}))
"""


def main() -> None:
    """Make the data, measure, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, action="append", help="real shards; may be repeated")
    parser.add_argument("--listed", type=int, default=1_000_000, help="shards of the manifest")
    options = parser.parse_args()
    names = ("shards", "s", "cpu_s", "MB", "requests", "first_line_s", "state_ms", "pickle_kB")
    print(f"{'':28}" + "".join(f"{name:>13}" for name in names))
    with tempfile.TemporaryDirectory(prefix="open-manifest-") as folder:
        for count in options.shards or (10_000,):
            place = Path(folder, str(count))
            urls = make_shards(place, count)
            report(f"{count} by directory", measure(str(place)), names)
            manifest = f"{place}.swm"
            merge_indexes(manifest, urls, store=IndexStore())
            report(f"{count} by manifest", measure(manifest), names)
            shutil.rmtree(place)
        path = Path(folder, "listed.swm")
        path.write_bytes(listed(options.listed))
        print(f"# the manifest has {path.stat().st_size / options.listed:.1f} bytes a shard")
        report(f"{options.listed} by manifest", measure(str(path)), names)
        with served(folder) as root:
            report(f"{options.listed} by HTTP", measure(f"{root}/listed.swm"), names)


def make_shards(place: Path, count: int) -> list[str]:
    """Shards of two samples with their indexes: copies of one, which have its time."""
    with sw.TarWriter(place / "one.tar") as writer:
        for key in ("a", "b"):
            writer.write({"__key__": key, "txt": "text", "cls": 1})
    tar, index = place / "one.tar", place / "one.tar.swi"
    data, index_data, changed = tar.read_bytes(), index.read_bytes(), tar.stat().st_mtime_ns
    tar.unlink()
    index.unlink()
    urls = [str(place / f"part-{number:07d}.tar") for number in range(count)]
    for url in urls:
        Path(url).write_bytes(data)
        os.utime(url, ns=(changed, changed))
        Path(f"{url}.swi").write_bytes(index_data)
    return urls


def listed(count: int) -> bytes:
    """A manifest of uneven shards that are nowhere."""
    random = np.random.default_rng(0)
    samples = random.integers(9_000, 11_000, count)
    lengths = random.integers(4 * 10**8, 6 * 10**8, count)
    names = ShardNames([NumberedNames("part-", ".tar", 0, 7, count)])
    manifest = Manifest.of_columns("tar", names, samples, lengths)
    tags, digests = random.integers(0, 2**63, (2, count)).astype(np.uint64)
    content = ManifestFile(
        fingerprint=manifest.fingerprint,
        names=names,
        samples=samples,
        lengths=lengths,
        tags=tags,
        index_digests=digests,
        index_bytes=random.integers(100_000, 120_000, count),
        fields=("jpg", "cls"),
    )
    return encode(content)


class served:  # noqa: N801 - used as a function
    """A web server of a directory, which answers ranges."""

    def __init__(self, folder: str) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                data = Path(folder, self.path.lstrip("/")).read_bytes()
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                part = data[int(first) : int(last) + 1]
                end = int(first) + len(part) - 1
                self.send_response(206)
                self.send_header("Content-Length", str(len(part)))
                self.send_header("Content-Range", f"bytes {first}-{end}/{len(data)}")
                self.send_header("ETag", '"one"')
                self.end_headers()
                self.wfile.write(part)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()


def measure(urls: str) -> dict[str, float]:
    """Open a dataset in a new process, with an empty cache directory."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, urls],
            env={**os.environ, "XDG_CACHE_HOME": cache},
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout)


def report(name: str, found: dict[str, float], columns: tuple[str, ...]) -> None:
    """A line of the table."""
    print(f"{name:28}" + "".join(f"{found[column]:13.5g}" for column in columns), flush=True)


if __name__ == "__main__":
    main()
