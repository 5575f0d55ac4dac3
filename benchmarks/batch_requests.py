"""Random samples from AIStore: a request a batch against a request a sample, at several latencies.

The cluster is the tests' stand-in, in processes of its own, which answers each request after a
delay: a range costs two of them, the gateway's redirect and the target's answer, and so does a
batch. Its Python is slower than a real cluster: take the ratios.

    python -m benchmarks.batch_requests --rounds 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import shardwise as sw

_NUM_SHARDS, _SHARD_SAMPLES, _BYTES, _BATCH = 12, 200, 97_000, 64


def serve(delay_s: float, has_get_batch: bool) -> None:
    """Run a cluster until standard input ends; prints the gateway's URL."""
    from tests.support import ais_cluster
    from tests.support.remote_shards import put_shards

    answer = ais_cluster.StoreHandler._serve

    def late(self: ais_cluster.StoreHandler) -> None:
        time.sleep(delay_s)
        answer(self)

    for method in ("do_GET", "do_HEAD"):
        setattr(ais_cluster.StoreHandler, method, late)
    with ais_cluster.ais_cluster(num_targets=3) as cluster:
        cluster.has_get_batch = has_get_batch
        put_shards(cluster, "train", [_SHARD_SAMPLES] * _NUM_SHARDS, num_bytes=_BYTES)
        print(cluster.endpoint, flush=True)
        sys.stdin.read()


def rate(delay_s: float, has_get_batch: bool, seconds: float) -> float:
    """Samples a second of a shuffled loader, the first batches apart."""
    command = [sys.executable, "-m", "benchmarks.batch_requests", "--serve"]
    arguments = json.dumps([delay_s, has_get_batch])
    with subprocess.Popen(
        [*command, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        storage = {"endpoint": process.stdout.readline().strip(), "prefetch_bytes": 0}
        pattern = f"ais://bucket/train/{{000..{_NUM_SHARDS - 1:03d}}}.tar"
        data = sw.tar(pattern, storage=storage).select("bin")
        loader = sw.DataLoader(
            data,
            batch_size=_BATCH,
            shuffle="full",
            remainder="drop",
            output="numpy",
            rank=0,
            world_size=1,
        )
        num_samples, began = 0, 0.0
        while True:
            for step, batch in enumerate(loader):
                if not began and step == 4:
                    began = time.perf_counter()
                elif began:
                    num_samples += len(batch["__key__"])
                    took = time.perf_counter() - began
                    if took > seconds:
                        loader.close()
                        process.kill()
                        return num_samples / took


def main() -> None:
    """Print a row a latency."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--serve")
    options = parser.parse_args()
    if options.serve:
        return serve(*json.loads(options.serve))
    print("delay  a request a sample   a request a batch   ratio (min to max)")
    for delay_s in (0.0, 0.01, 0.04):
        pairs = [
            (rate(delay_s / 2, False, options.seconds), rate(delay_s / 2, True, options.seconds))
            for _ in range(options.rounds)
        ]
        single, batched = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratios = sorted(many / one for one, many in pairs)
        print(
            f"{delay_s * 1000:3.0f} ms {single:14.0f}/s {batched:18.0f}/s   "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
    return None


if __name__ == "__main__":
    main()
