"""Nodes of a process group share a cache: each byte leaves the store once, whatever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.hosts import Hosts, hosts
from tests.support.ranks import Run, run_several
from tests.support.remote_shards import put_indexed_shards
from tests.support.servers import S3Server, s3_gateway
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for

NODE = Path(__file__).with_name("node.py")
SAMPLE_BYTES, SIZES = 20_000, [30] * 4


def arguments(s3: S3Server, prefix: str, folder: Path, num_nodes: int, **options: Any) -> dict:
    """The argument of `node.py`, over shards of a prefix."""
    urls = put_indexed_shards(s3, prefix, SIZES, num_bytes=SAMPLE_BYTES)
    assert s3.front is not None
    return {
        "folder": str(folder), "urls": urls, "storage": s3.config, "prefix": prefix,
        "front": s3.front.url, "log": str(s3.front.log), "epochs": 3, "shuffle": "window",
        "rooms": [64 << 20] * num_nodes, "loader": {"batch_size": 8, "num_threads": 1}, **options,
    }  # fmt: skip


def lines_and_state(
    s3: S3Server, prefix: str, output: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each epoch sent, over the bytes of the data; and the state at the end."""
    lines = [json.loads(line[5:]) for line in output.splitlines() if line.startswith("LINE ")]
    stored = sum(len(s3.request("GET", f"{prefix}/{n:03d}.tar").body) for n in range(len(SIZES)))
    for line in lines:
        line["ratio"] = line["sent"] / stored
    state = next(line for line in output.splitlines() if line.startswith("STATE "))
    return lines, json.loads(state[6:])


def run_nodes(
    s3: S3Server,
    prefix: str,
    folder: Path,
    num_nodes: int,
    *,
    meanwhile: Callable[[Hosts | None], None] | None = None,
    **options: Any,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run nodes, which are hosts where this user may make some; they pause for `meanwhile`."""
    given = arguments(s3, prefix, folder, num_nodes, **options)
    nproc = len(given.get("nodes", range(num_nodes)))
    check = "kill" not in given
    env: dict[str, str] = {}
    with ExitStack() as stack:
        made = stack.enter_context(hosts(num_nodes))
        if made is not None:
            port = int(s3.endpoint.rpartition(":")[2])
            proxy = stack.enter_context(TcpProxy(port, host=made.outside))
            behind = s3.behind(f"http://{made.outside}:{proxy.port}")
            given |= {"hosts": made.names, "storage": behind.config, "front": behind.endpoint}
            env = {"MASTER_ADDR": made.addresses[0], "GLOO_SOCKET_IFNAME": "eth0"}
            env["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        pool = stack.enter_context(ThreadPoolExecutor(1))
        if meanwhile is not None:
            acted = pool.submit(_act, folder, nproc, partial(meanwhile, made))
            given["pause"] = 0
        [done] = run_several(Run((NODE, json.dumps(given)), nproc, check, env), timeout=300)
        if meanwhile is not None:
            acted.result()
    if not check:
        assert done.returncode
        return [], {}
    assert "is not shared" not in done.stdout, done.stdout
    return lines_and_state(s3, prefix, done.stdout)


def _act(folder: Path, nproc: int, meanwhile: Callable[[], None]) -> None:
    try:
        wait_for(lambda: all((folder / f"paused{rank}").exists() for rank in range(nproc)))
        meanwhile()
    finally:
        (folder / "go").touch()


def test_hosts_of_a_process_group_share_beside_a_loader_of_one_rank(s3, tmp_path) -> None:
    # Two ranks share a node.
    options = {"nodes": [0, 0, 1], "epochs": 2, "evaluates": True}
    first, second = run_nodes(s3, "group", tmp_path, 2, **options)[0]
    assert first["is_exact"]
    assert second["is_exact"]
    assert first["ratio"] <= 1.03
    assert second["ratio"] <= 0.03
    assert all(each["peers"] > 0 for each in second["from"])


@pytest.mark.long
@pytest.mark.parametrize("num_nodes", [3, 4])
@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_each_byte_leaves_the_store_once_for_hosts(s3, tmp_path, num_nodes, shuffle) -> None:
    first, *later = run_nodes(s3, f"{shuffle}{num_nodes}", tmp_path, num_nodes, shuffle=shuffle)[0]
    assert all(line["is_exact"] for line in (first, *later))
    assert first["ratio"] <= 1.03
    assert max(line["ratio"] for line in later) <= 0.03


@pytest.mark.long
@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_a_gateway_that_is_killed_and_started_again_sends_little_more(tmp_path, shuffle) -> None:
    objects = tmp_path / "s3"
    objects.mkdir()
    with s3_gateway(objects, access_log=True) as s3, ExitStack() as stack:

        def kill_gateway(_: Hosts | None) -> None:
            [gateway] = [
                each
                for each in psutil.Process().children(recursive=True)
                if f"badger://{objects}/meta" in " ".join(each.cmdline())
            ]
            # JuiceFS writes its arguments anew, as one text whose end may be cut: part of a port.
            *command, address = " ".join(gateway.cmdline()).split()
            listening = [
                f"127.0.0.1:{each.laddr.port}"
                for each in gateway.net_connections("tcp")
                if each.status == psutil.CONN_LISTEN
            ]
            command += [each for each in listening if each.startswith(address)][:1]
            gateway.kill()
            (tmp_path / "go").touch()
            time.sleep(1)  # requests fail meanwhile
            keys = {"MINIO_ROOT_USER": s3.access_key, "MINIO_ROOT_PASSWORD": s3.secret_key}
            environment = {**os.environ, **keys, "HOME": str(objects)}
            again = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(again.wait)
            stack.callback(again.kill)

        lines, _ = run_nodes(
            s3, f"down-{shuffle}", tmp_path, 3, shuffle=shuffle, hedge=True, meanwhile=kill_gateway
        )
    assert all(line["is_exact"] for line in lines)
    assert lines[0]["ratio"] <= 1.6
    assert max(line["ratio"] for line in lines[1:]) <= 0.03


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


@pytest.mark.long
def test_nodes_that_are_parted_in_silence_read_on_from_the_store(s3, tmp_path) -> None:
    parted = []

    def part(made: Hosts | None) -> None:
        if made is None:
            return
        made.part(on=True)
        try:
            (tmp_path / "go").touch()
            # Each batch comes within the loader's timeout, while no node hears of another.
            wait_for(lambda: all((tmp_path / f"read{rank}").exists() for rank in range(3)))
            parted.append(time.monotonic())
        finally:
            made.part(on=False)

    options = {"shuffle": "full", "loader": {"batch_size": 8, "num_threads": 1, "timeout": 45}}
    lines, _ = run_nodes(s3, "parted", tmp_path, 3, meanwhile=part, **options)
    if not parted:
        pytest.skip("this user may make no hosts")
    assert all(line["is_exact"] for line in lines)
    # Each node read the blocks of its samples itself.
    assert 1 < lines[0]["ratio"] <= 3.03
    assert lines[2]["ratio"] <= 0.6
