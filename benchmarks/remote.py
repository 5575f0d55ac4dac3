"""Rates over a real S3 gateway: this library, obstore fetching the objects whole, and peers.

The server is an S3 gateway with keys on loopback ("near"), the same behind a proxy that holds every
reply back by 20 ms ("far"), and behind one that lets each reply have 80 MB/s after 30 ms, as large
stores do ("limited"). Every row is the median of some rounds in turn. Peers are measured if
`--peers` names a virtual environment that has them (`benchmarks.throughput` makes one). The floors:
`obstore_whole` fetches the objects and drops them, `obstore_members` makes the same batches. Run:

    python -m benchmarks.remote [--shards 8] [--mb 64] [--rounds 3] [--peers DIR] [--json]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.remote_tasks import Job, Result
from shardwise.sources.tar.index.build import build_indexes
from shardwise.storage import StorageOptions
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import S3Server, s3_gateway

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_BYTES = 64 << 10
LATENCY_S = 0.02
LIMITED = {"latency_s": 0.03, "reply_bandwidth": 80e6}
# Against which row each is held, and how much of it is asked for.
ROWS = (
    ("near", "obstore_whole", None, None),
    ("near", "obstore_members", "obstore_whole", None),
    ("near", "ours", "obstore_whole", 0.93),
    ("near", "ours_processes", "obstore_whole", None),
    ("near", "ours_window", "obstore_whole", None),
    ("near", "webdataset", "obstore_whole", None),
    ("near", "streaming", "obstore_whole", None),
    ("near", "litdata", "obstore_whole", None),
    ("far", "obstore_whole", None, None),
    ("far", "obstore_members", "obstore_whole", None),
    ("far", "ours", "obstore_whole", 0.97),
    ("far", "ours_window", "obstore_whole", None),
    ("far", "webdataset", "obstore_whole", None),
    ("far", "streaming", "obstore_whole", None),
    ("far", "litdata", "obstore_whole", None),
    ("far", "obstore_random", None, None),
    ("far", "ours_random", "obstore_random", None),
    ("far", "ours_first", None, None),
    ("far", "ours_open", None, None),
    ("limited", "obstore_whole", None, None),
    ("limited", "obstore_members", "obstore_whole", None),
    ("limited", "ours", "obstore_whole", None),
    ("limited", "fill_cache", None, None),
    ("near", "ours_local", None, None),
    ("near", "ours_cached", "ours_local", 0.9),
    ("near", "ours_once", None, None),
    ("near", "write_once", "ours_once", None),
    ("near", "fill_cache", "ours_once", 0.85),
    ("near", "ours_from_peer", "fill_cache", None),
    ("near", "ours_from_peer_tls", "ours_from_peer", None),
)
# Peers that read a form of their own, and where it lies in the bucket.
FORMS = {"streaming": "mds", "litdata": "litdata"}
PEERS = {"webdataset", *FORMS}


def shard(number: int, num_samples: int) -> bytes:
    """A shard of incompressible samples of 64 kB."""
    draw = np.random.default_rng(number)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(num_samples):
            for field, data in (("bin", draw.bytes(SAMPLE_BYTES)), ("cls", b"7")):
                info = tarfile.TarInfo(f"{number:03d}-{i:06d}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def put_all(s3: S3Server, folder: Path, num_shards: int, num_samples: int) -> Job:
    """The shards as objects with indexes, as objects without, and as files."""
    (folder / "files").mkdir()
    keys, files, bare, num_bytes = [], [], [], 0
    for number in range(num_shards):
        data = shard(number, num_samples)
        name = f"{number:03d}.tar"
        num_bytes += len(data)
        keys.append(f"train/{name}")
        s3.put(keys[-1], data)
        bare.append(s3.put(f"bare/{name}", data))
        files.append(str(folder / "files" / name))
        Path(files[-1]).write_bytes(data)
    urls = [s3.url(key) for key in keys]
    build_indexes(urls, options=StorageOptions(config=s3.config))
    build_indexes(files)
    return {
        "bucket": s3.bucket, "keys": keys, "urls": urls, "files": files, "num_bytes": num_bytes,
        "urls_without_index": bare, "num_samples": num_shards * num_samples, "in_flight": 8,
        "workers": 2, "steps": 30, "epochs": 8, "shard_bytes": num_bytes // num_shards,
    }  # fmt: skip


def put_converted(python: Path, task: str, s3: S3Server, job: Job, folder: Path) -> None:
    """The same samples in a peer's own form."""
    out = folder / task
    measure(python, f"convert_{task}", {**job, "converted": str(out)}, folder)
    for path in sorted(out.iterdir()):
        s3.put(f"{FORMS[task]}/{path.name}", path.read_bytes())


def measure(python: Path, task: str, job: Job, cache: Path) -> Result:
    """One run of one task, in a new process with an empty page of caches of its own."""
    with tempfile.TemporaryDirectory(dir=cache) as own:
        path = Path(own) / "job.json"
        path.write_text(json.dumps({**job, "cache": f"{own}/cache"}))
        done = subprocess.run(
            [python, "-m", "benchmarks.remote_tasks", task, path],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{task}: {done.stderr[-2000:]}")
    found: Result = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--mb", type=int, default=64, help="of each shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="an environment with the peers")
    parser.add_argument("--only", action="append", help="tasks; all of them otherwise")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [
        row
        for row in ROWS
        if (given.only is None or row[1] in given.only) and (given.peers or row[1] not in PEERS)
    ]
    num_samples = given.mb * 10**6 // SAMPLE_BYTES
    results: dict[tuple[str, str], list[Result]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Where indexes are kept: opening is a row of its own.
        os.environ["XDG_CACHE_HOME"] = str(folder / "user")
        (folder / "s3").mkdir()
        with (
            s3_gateway(folder / "s3") as s3,
            FaultProxy(s3.endpoint, latency_s=LATENCY_S) as far,
            FaultProxy(s3.endpoint, **LIMITED) as limited,
        ):
            job = put_all(s3, folder, given.shards, num_samples)
            servers = {
                "near": s3, "far": s3.behind(far.url), "limited": s3.behind(limited.url),
            }  # fmt: skip
            for task in FORMS.keys() & {row[1] for row in rows}:
                put_converted(given.peers / "bin" / "python", task, s3, job, folder)
            for _ in range(given.rounds):
                for where, task, _, _ in rows:
                    python = given.peers / "bin" / "python" if task in PEERS else sys.executable
                    config = servers[where].config
                    found = measure(Path(python), task, {**job, "config": config}, folder)
                    results.setdefault((where, task), []).append(found)
    report(rows, results, as_json=given.json)


def report(rows: Any, results: dict[tuple[str, str], list[Result]], *, as_json: bool) -> None:
    """A row a measurement: the median rate, and its share of the row it is held against."""
    table = Table(
        "server",
        "task",
        "s",
        "MB/s",
        "CPU s/GB",
        "samples/s",
        "held against",
        "share",
        "wanted",
        "of members",
        box=None,
    )
    document = []
    rates = {
        key: statistics.median(run["bytes"] / run["seconds"] for run in runs)
        for key, runs in results.items()
    }
    for where, task, floor, asked in rows:
        runs = results[where, task]
        rate = rates[where, task]
        share = rate / rates[where, floor] if floor and (where, floor) in rates else None
        # What makes the same batches of the same objects.
        same = rates.get((where, "obstore_members")) if floor == "obstore_whole" else None
        seconds = statistics.median(run["seconds"] for run in runs)
        samples = statistics.median(run["samples"] / run["seconds"] for run in runs)
        # Of the client's process, without the server's: what counts where the machine is shared.
        cpu = [run["cpu"] / run["bytes"] * 1e9 for run in runs if "cpu" in run]
        table.add_row(
            where, task, f"{seconds:.2f}", f"{rate / 1e6:,.0f}",
            f"{statistics.median(cpu):.2f}" if cpu else "", f"{samples:,.0f}", floor or "",
            "" if share is None else f"{share:.0%}", "" if asked is None else f"{asked:.0%}",
            "" if same is None else f"{rate / same:.0%}",
        )  # fmt: skip
        document.append({"server": where, "task": task, "share": share, "runs": runs})
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        Console().print(table)


if __name__ == "__main__":
    main()
