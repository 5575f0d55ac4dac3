"""Nodes that share a cache: each byte leaves the store once, in all epochs that the disks hold."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import run_ranks
from tests.support.remote_shards import body, put_indexed_shards
from tests.support.servers import S3Server

NODE = Path(__file__).with_name("node.py")
SAMPLE_BYTES, SIZES = 20_000, [40] * 9
DIGEST = 0
for g in range(sum(SIZES)):
    DIGEST ^= zlib.crc32(body(g, SAMPLE_BYTES))


def run_nodes(
    s3: S3Server, prefix: str, folder: Path, num_nodes: int, **options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each epoch sent, over the bytes of the data; and the state at the end."""
    urls = put_indexed_shards(s3, prefix, SIZES, num_bytes=SAMPLE_BYTES)
    assert s3.front is not None
    given = {
        "folder": str(folder), "urls": urls, "storage": s3.config, "prefix": prefix,
        "front": s3.front.url, "log": str(s3.front.log), "epochs": 3, "shuffle": "window",
        "rooms": [64 << 20] * num_nodes, "loader": {"batch_size": 8, "num_threads": 1}, **options,
    }  # fmt: skip
    nproc = len(given.get("nodes", range(num_nodes)))
    done = run_ranks(NODE, json.dumps(given), nproc=nproc)
    print(done.stdout)
    lines = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("LINE ")]
    stored = sum(len(s3.request("GET", f"{prefix}/{n:03d}.tar").body) for n in range(len(SIZES)))
    for line in lines:
        line["ratio"] = line["sent"] / stored
    state = next(line for line in done.stdout.splitlines() if line.startswith("STATE "))
    return lines, json.loads(state[6:])


@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_each_byte_leaves_the_store_once(s3: S3Server, tmp_path: Path, shuffle: str) -> None:
    lines, _ = run_nodes(s3, f"once-{shuffle}", tmp_path, 3, shuffle=shuffle)
    assert [line["is_exact"] for line in lines] == [True] * 3
    assert lines[0]["ratio"] <= 1.03
    assert lines[1]["ratio"] <= 0.03
    assert lines[2]["ratio"] <= 0.03
    for line in lines:
        digest = 0
        for each in line["digest"]:
            digest ^= each
        assert digest == DIGEST
    assert all(each["peers"] > 0 for each in lines[-1]["from"])
