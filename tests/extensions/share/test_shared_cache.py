"""Nodes that share a cache: each byte leaves the store once, in all epochs that the disks hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import run_ranks
from tests.support.remote_shards import put_indexed_shards
from tests.support.servers import S3Server

NODE = Path(__file__).with_name("node.py")
SAMPLE_BYTES, SIZES = 20_000, [30] * 4


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
    check = "kill" not in given
    done = run_ranks(NODE, json.dumps(given), nproc=nproc, check=check)
    if not check:
        assert done.returncode
        return [], {}
    lines = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("LINE ")]
    stored = sum(len(s3.request("GET", f"{prefix}/{n:03d}.tar").body) for n in range(len(SIZES)))
    for line in lines:
        line["ratio"] = line["sent"] / stored
    state = next(line for line in done.stdout.splitlines() if line.startswith("STATE "))
    return lines, json.loads(state[6:])


def test_ranks_of_a_process_group_find_each_other(s3: S3Server, tmp_path: Path) -> None:
    # Two ranks share a node.
    first, second = run_nodes(s3, "group", tmp_path, 2, nodes=[0, 0, 1], epochs=2)[0]
    assert first["is_exact"]
    assert second["is_exact"]
    assert first["ratio"] <= 1.03
    assert second["ratio"] <= 0.03
    assert all(each["peers"] > 0 for each in second["from"])


@pytest.mark.long
@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_a_killed_node_costs_what_it_held(s3: S3Server, tmp_path: Path, shuffle: str) -> None:
    options = {"shuffle": shuffle}
    prefix = f"killed-{shuffle}"
    [first], state = run_nodes(s3, prefix, tmp_path, 3, epochs=1, **options)
    assert first["is_exact"]
    run_nodes(s3, prefix, tmp_path, 3, state=state, kill=[2, 16], **options)
    lines, _ = run_nodes(s3, prefix, tmp_path, 2, state=state, **options)
    assert all(line["is_exact"] for line in lines)
    assert lines[0]["ratio"] <= 0.6
    assert lines[1]["ratio"] <= 0.03
