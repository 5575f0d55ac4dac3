"""Builds on Ray: `python -m tests.extensions.build.ray_program SCENARIO DIRECTORY ADDRESS`.

It works in DIRECTORY and writes what happened there, `SCENARIO.json`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import ray
from click.testing import CliRunner

import shardwise as sw
from shardwise.cli import cli
from tests.extensions.build.program import run, scaled

RECIPE = """
def described():
    return {"source": [{"cls": n} for n in range(20)], "pattern": "numbers/{shard}.tar"}
"""


def failing(item: int) -> dict[str, Any]:
    return {"cls": 10 // (item - 13)}


def deadly(item: int) -> dict[str, Any]:
    if item == 7:
        os._exit(1)
    return {"cls": item}


def gated(item: int) -> dict[str, Any]:
    """Waits for a file, by a relative path: a task works in the builder's directory."""
    Path(f"begun-{item}").touch()
    while not Path("gate").exists():
        time.sleep(0.01)
    return {"cls": item}


def whole(address: str) -> dict[str, Any]:
    """All that a build of ours is, on two nodes."""
    report = run("out/{shard:03d}.tar", None, ray=address)
    nodes = {node["NodeID"] for node in ray_nodes(address)}
    said = ""
    try:
        sw.build(range(4), "other/{shard}.tar", map=scaled, ray=address)
    except sw.WorkerError as error:
        said = str(error)
    return {
        "report": report,
        "is_connected": ray.is_initialized(),
        "num_nodes": len(nodes),
        "other_code": said,
    }


def ray_nodes(address: str) -> list[dict[str, Any]]:
    ray.init(address, logging_level="ERROR")
    try:
        return list(ray.nodes())
    finally:
        ray.shutdown()


def errors(address: str) -> dict[str, Any]:
    """What goes wrong, and how it is said."""
    said = {}
    for name, function in (("failing", failing), ("deadly", deadly)):
        try:
            sw.build(
                range(20), f"{name}/{{shard}}.tar", map=function, samples_per_shard=3, ray=address
            )
        except sw.ShardwiseError as error:
            said[name] = [type(error).__name__, str(error), getattr(error, "index", None)]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        said["nobody"] = refusal(nobody)
        ray.init(address, logging_level="ERROR")
        said["another"] = refusal(nobody)
    # A connection of the program's own is used, and stays.
    sw.build(range(4), "own/{shard}.tar", map=deadly, num_workers=1, ray=True)
    said["is_connected"] = ray.is_initialized()
    ray.shutdown()
    return said


def refusal(address: str) -> list[str]:
    try:
        sw.build(range(4), "refused/{shard}.tar", map=deadly, ray=address)
    except (sw.WorkerError, ValueError) as error:
        return [type(error).__name__, str(error)]
    return []


def commands(address: str) -> dict[str, Any]:
    Path("recipe.py").write_text(RECIPE)
    found = {}
    for arguments in (
        ["build", "recipe.py:described", "--ray", address],
        ["convert", "numbers/manifest.swm", "table/{shard}.parquet", f"--ray={address}"],
        ["reshard", "numbers/manifest.swm", "others", "--samples-per-shard", "7", "--ray", address],
    ):
        result = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        found[arguments[0]] = json.loads(result.stdout)
    return found


def gate(address: str) -> dict[str, Any]:
    """A build that waits for the test, which may interrupt it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return sw.build(range(4), "out/{shard}.tar", map=gated, samples_per_shard=1, ray=address)


def started(_address: str) -> dict[str, Any]:
    """A cluster of this machine, which the build starts and ends."""
    report = run("out/{shard:03d}.tar", 2, ray=True)
    return {"report": report, "is_connected": ray.is_initialized()}


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    scenario = {f.__name__: f for f in (whole, errors, commands, gate, started)}[sys.argv[1]]
    Path(f"{sys.argv[1]}.json").write_text(json.dumps(scenario(sys.argv[3])))
