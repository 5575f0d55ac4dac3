"""Ray's driver: the example's training, whose workers fail once.

Arguments: the directory to write to, which has the shards, the steps to fail after, and a folder
with a short name for Ray's sockets.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray

from examples.trainers.with_ray import train


def main(out, stop_after, sockets):
    out = Path(out)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 * 2**20,
        _temp_dir=sockets,
        _node_ip_address="127.0.0.1",
    )
    try:
        train(out, stop_after=int(stop_after))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
