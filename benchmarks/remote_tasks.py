"""One measurement of `benchmarks.remote`, in a process of its own; prints a line of JSON.

Each takes the job (a dict: urls, config, the same shards as files, cache, ...) and returns seconds,
and how many bytes of payloads and samples it read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from shardwise.extensions.service.token import make_token
from tests.support.server_process import free_port

Job = dict[str, Any]
Result = dict[str, float]


def obstore_whole(job: Job) -> Result:
    """The floor: every object fetched whole by obstore, as many at a time as goes fastest here."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        job["bucket"],
        config=job["config"],
        client_options={"allow_http": True},
    )
    began, cpu_began = time.perf_counter(), time.process_time()
    total = 0
    for _ in range(job["epochs"]):
        with ThreadPoolExecutor(job["in_flight"]) as pool:
            total += sum(pool.map(lambda key: len(obstore.get(store, key).bytes()), job["keys"]))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    samples = job["epochs"] * job["num_samples"]
    return {"seconds": seconds, "cpu": cpu, "bytes": total, "samples": samples}


def obstore_members(job: Job) -> Result:
    """The same, read in order, with the members copied out and put together in batches of 64."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(job["bucket"], config=job["config"], client_options={"allow_http": True})
    places = {key: _members(path) for key, path in zip(job["keys"], job["files"], strict=True)}
    keys = job["keys"] * job["epochs"]
    began, cpu_began = time.perf_counter(), time.process_time()
    samples = num_bytes = 0
    with ThreadPoolExecutor(job["in_flight"]) as pool:
        ahead: deque[Future[memoryview]] = deque()
        batch: list[bytes] = []
        for at, key in enumerate(keys):
            for name in keys[at + len(ahead) : at + job["in_flight"]]:
                ahead.append(
                    pool.submit(lambda name=name: memoryview(obstore.get(store, name).bytes()))
                )
            data = ahead.popleft().result()
            for start, stop in places[key]:
                batch.append(bytes(data[start:stop]))
                if len(batch) == 64:
                    samples, num_bytes = samples + len(batch), num_bytes + sum(map(len, batch))
                    batch = []
        samples, num_bytes = samples + len(batch), num_bytes + sum(map(len, batch))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return {"seconds": seconds, "cpu": cpu, "bytes": num_bytes, "samples": samples}


def _members(path: str) -> list[tuple[int, int]]:
    """Where the members ".bin" of a shard start and end."""
    with tarfile.open(path) as tar:
        files = [member for member in tar if member.name.endswith(".bin")]
    return [(member.offset_data, member.offset_data + member.size) for member in files]


def obstore_random(job: Job) -> Result:
    """The floor of random access: ranges of a sample's length by obstore, 64 in flight."""
    import asyncio
    import random

    import obstore
    from obstore.store import S3Store

    store = S3Store(job["bucket"], config=job["config"], client_options={"allow_http": True})
    draw = random.Random(0)
    num, length = 64 * job["steps"], 64 << 10

    async def read(slots: asyncio.Semaphore) -> int:
        key, start = draw.choice(job["keys"]), draw.randrange(job["shard_bytes"] - length)
        async with slots:
            reply = await obstore.get_async(store, key, options={"range": (start, start + length)})
            return len(memoryview(await reply.bytes_async()))

    async def read_all() -> int:
        slots = asyncio.Semaphore(64)
        return sum(await asyncio.gather(*(read(slots) for _ in range(num))))

    began = time.perf_counter()
    total = asyncio.run(read_all())
    return {"seconds": time.perf_counter() - began, "bytes": total, "samples": num}


def ours(job: Job) -> Result:
    """A loader over S3, in storage order."""
    return _epoch(job, job["urls"], shuffle=False, storage=job["config"], epochs=job["epochs"])


def ours_processes(job: Job) -> Result:
    """The same with two worker processes."""
    return _epoch(job, job["urls"], shuffle=False, storage=job["config"], num_workers=2)


def ours_window(job: Job) -> Result:
    """The same, shuffled in windows."""
    return _epoch(job, job["urls"], shuffle="window", storage=job["config"])


def ours_random(job: Job) -> Result:
    """Samples in random order, 64 a batch."""
    return _epoch(job, job["urls"], shuffle="full", storage=job["config"], steps=job["steps"])


def ours_local(job: Job) -> Result:
    """The same shards as files."""
    return _epoch(job, job["files"], shuffle=False, epochs=job["epochs"])


def ours_cached(job: Job) -> Result:
    """From a cache that another process has filled: the second epoch of a job that began anew."""
    subprocess.run(
        [sys.executable, "-m", "benchmarks.remote_tasks", "fill_cache", sys.argv[2]],
        check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return _cached(job, epochs=job["epochs"])


def ours_once(job: Job) -> Result:
    """One sequential epoch without a cache."""
    return _epoch(job, job["urls"], shuffle=False, storage=job["config"])


def write_once(job: Job) -> Result:
    """The same while a thread writes as many bytes to files: the floor of filling a cache."""
    folder, piece = Path(job["cache"]), bytes(2 << 20)
    folder.mkdir()

    def write() -> None:
        for number in range(len(job["urls"])):
            with (folder / str(number)).open("wb", buffering=0) as file:
                for _ in range(job["shard_bytes"] // len(piece)):
                    file.write(piece)

    return _epoch(
        job,
        job["urls"],
        shuffle=False,
        storage=job["config"],
        beside=threading.Thread(target=write),
    )


def fill_cache(job: Job) -> Result:
    """The same through an empty cache."""
    return _cached(job, epochs=1)


def ours_from_peer(job: Job) -> Result:
    """Half of the epoch through an empty cache, from another node's full one.

    In storage order two ranks read parts of nearly all blocks: the bytes are those that travel.
    """
    return _from_peer(job, "tcp", {})


def ours_from_peer_tls(job: Job) -> Result:
    """The same by TLS."""
    from tests.support.certificates import Authority

    authority = Authority(Path(job["cache"]).parent)
    cert, ca = authority.certificate("node"), authority.ca
    return _from_peer(job, "tls", {"tls_cert": str(cert), "tls_ca": str(ca)})


def _from_peer(job: Job, scheme: str, tls: dict[str, str]) -> Result:
    ports = [free_port() for _ in range(2)]
    make_token(f"{job['cache']}.token")
    peers = [f"{scheme}://127.0.0.1:{port}" for port in ports]
    job |= {"peers": peers, "own": job["cache"], "tls": tls}
    Path(sys.argv[2]).write_text(json.dumps(job))
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.remote_tasks", "serve_blocks", sys.argv[2]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as node:  # fmt: skip
        assert node.stdout is not None
        node.stdout.readline()
        cache = _shared(job, f"{job['cache']}.empty")
        found = _epoch(
            job, job["urls"], shuffle=False, storage=job["config"], cache=cache, ranks=(1, 2)
        )
        node.communicate()
    return {**found, "bytes": found["from_peers"]}


def serve_blocks(job: Job) -> Result:
    """Fill a cache, and serve its blocks until the input ends."""
    import shardwise as sw

    _cached(job, epochs=1)
    data = sw.tar(
        job["urls"], fields=("bin",), storage=job["config"], cache=_shared(job, job["own"])
    )
    with sw.DataLoader(data, batch_size=64, rank=0, world_size=2, shuffle=False) as loader:
        batches = iter(loader)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        next(batches)
        sys.stdin.read()
    return {}


def _shared(job: Job, folder: str) -> Any:
    import shardwise as sw

    token = f"{job['cache']}.token"
    return sw.CacheSettings(folder, share=True, peers=job["peers"], token_file=token, **job["tls"])


def _cached(job: Job, *, epochs: int) -> Result:
    storage, cache = job["config"], job["cache"]
    return _epoch(job, job["urls"], shuffle=False, storage=storage, cache=cache, epochs=epochs)


def ours_first(job: Job) -> Result:
    """The first batch: everything included but the import, with an index beside the shard."""
    return _epoch(job, job["urls"][:1], shuffle=False, storage=job["config"], steps=1)


def ours_open(job: Job) -> Result:
    """Making the indexes of all shards: what no other row counts."""
    import shardwise as sw

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        num = len(sw.tar(job["urls_without_index"], index=folder, storage=job["config"]))
    return {"seconds": time.perf_counter() - began, "bytes": job["num_bytes"], "samples": num}


def webdataset(job: Job) -> Result:
    """WebDataset as documented: a pipe from curl a shard."""
    import webdataset as wds

    key = f"{job['config']['aws_access_key_id']}:{job['config']['aws_secret_access_key']}"
    region = job["config"]["aws_region"]
    sign = f"--aws-sigv4 aws:amz:{region}:s3 --user {key}"
    root = job["config"]["aws_endpoint"]
    urls = [f"pipe:curl -s -f {sign} {root}/{job['bucket']}/{key}" for key in job["keys"]]
    import torch.utils.data

    data = wds.WebDataset(urls, shardshuffle=False, nodesplitter=None)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=job["workers"])
    began = time.perf_counter()
    samples = num_bytes = 0
    for sample in loader:
        samples += 1
        num_bytes += len(sample["bin"])
    return {"seconds": time.perf_counter() - began, "bytes": num_bytes, "samples": samples}


def streaming(job: Job) -> Result:
    """mosaicml-streaming: the same samples as MDS, downloaded whole to a local directory."""
    from benchmarks.peers.mosaic import without_torchvision

    without_torchvision()
    from streaming import StreamingDataset

    with tempfile.TemporaryDirectory() as folder:
        return _peer(job, lambda: StreamingDataset(
            remote=f"s3://{job['bucket']}/mds", local=folder, shuffle=False, batch_size=64
        ))  # fmt: skip


def litdata(job: Job) -> Result:
    """LitData: the same samples as its chunks, downloaded whole to a local directory."""
    import litdata as peer
    from litdata.streaming import downloader

    # It has no setting for a server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    with tempfile.TemporaryDirectory() as folder:
        # What its client takes beside the environment.
        options = {"endpoint_url": job["config"]["aws_endpoint"]}
        return _peer(job, lambda: peer.StreamingDataset(
            f"s3://{job['bucket']}/litdata", cache_dir=folder, storage_options=options
        ))  # fmt: skip


def convert_streaming(job: Job) -> Result:
    """Write the samples of the shards as MDS."""
    from benchmarks.peers.mosaic import without_torchvision

    without_torchvision()
    from streaming import MDSWriter

    columns = {"bin": "bytes"}
    with MDSWriter(out=job["converted"], columns=columns, size_limit=64 << 20) as writer:
        for sample in _samples(job):
            writer.write(sample)
    return {}


def convert_litdata(job: Job) -> Result:
    """Write the samples of the shards as LitData's chunks."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(job["converted"], chunk_bytes="64MB")
    for i, sample in enumerate(_samples(job)):
        writer.add_item(i, sample)
    writer.done()
    writer.merge(1)
    return {}


def _samples(job: Job) -> Iterator[dict[str, bytes]]:
    for path in job["files"]:
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".bin"):
                    file = tar.extractfile(member)
                    assert file is not None
                    yield {"bin": file.read()}


def _peer(job: Job, make: Callable[[], Any]) -> Result:
    """An epoch of a peer's dataset in torch's DataLoader, in storage order."""
    import torch.utils.data

    config = job["config"]
    os.environ |= {
        "S3_ENDPOINT_URL": config["aws_endpoint"],
        "AWS_ENDPOINT_URL": config["aws_endpoint"],
        "AWS_ACCESS_KEY_ID": config["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": config["aws_secret_access_key"],
        "AWS_DEFAULT_REGION": config["aws_region"],
    }
    began = time.perf_counter()
    loader = torch.utils.data.DataLoader(
        make(), batch_size=64, num_workers=job["workers"], collate_fn=list
    )
    samples = num_bytes = 0
    for batch in loader:
        samples += len(batch)
        num_bytes += sum(len(sample["bin"]) for sample in batch)
    return {"seconds": time.perf_counter() - began, "bytes": num_bytes, "samples": samples}


def _epoch(
    job: Job,
    urls: list[str],
    *,
    shuffle: Any,
    storage: Any = None,
    cache: Any = None,
    num_workers: int | None = None,
    steps: int | None = None,
    epochs: int = 1,
    beside: threading.Thread | None = None,
    ranks: tuple[int, int] = (0, 1),
) -> Result:
    import shardwise as sw

    began, cpu_began = time.perf_counter(), time.process_time()
    data = sw.tar(urls, fields=("bin",), storage=storage, cache=cache)
    with sw.DataLoader(
        data, batch_size=64, shuffle=shuffle, rank=ranks[0], world_size=ranks[1],
        remainder="uneven", num_workers=num_workers, num_threads=job.get("threads"), output="numpy",
    ) as loader:  # fmt: skip
        if not steps or steps > 1:
            # The index is there and opened: what is measured is reading.
            began, cpu_began = time.perf_counter(), time.process_time()
        if beside:
            beside.start()
        samples = num_bytes = 0
        every = chain.from_iterable(loader for _ in range(epochs))
        for step, batch in enumerate(every, 1):
            samples += len(batch["bin"])
            num_bytes += sum(map(len, batch["bin"]))
            if step == steps:
                break
        if beside:
            beside.join()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        stats = loader.stats()
    return {
        "seconds": seconds, "cpu": cpu, "bytes": num_bytes, "samples": samples,
        "requests": stats["requests"], "fetched": stats["bytes_fetched"],
        "from_peers": stats["bytes_from"]["peers"],
    }  # fmt: skip


TASKS: dict[str, Callable[[Job], Result]] = {
    task.__name__: task
    for task in (
        obstore_whole, obstore_members, obstore_random,
        ours, ours_processes, ours_window, ours_random, ours_local, ours_cached,
        ours_once, write_once, fill_cache, ours_first, ours_open,
        ours_from_peer, ours_from_peer_tls, serve_blocks,
        webdataset, streaming, litdata, convert_streaming, convert_litdata,
    )
}  # fmt: skip


if __name__ == "__main__":
    found = TASKS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
    sys.stdout.write(json.dumps(found) + "\n")
