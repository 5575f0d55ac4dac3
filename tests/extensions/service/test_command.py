"""`shardwise serve`: it says where it is, serves, and ends as it is told."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.batch_servers import BatchServers, module_of, write_dataset
from tests.support.commands import run


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_it_serves_until_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    path = write_dataset(tmp_path, size=12, bad=9)
    with BatchServers(path, 1) as servers:
        data = module_of(path).dataset()
        options = {"batch_size": 4, "rank": 0, "world_size": 1}
        with sw.DataLoader(data, executor=sw.service(servers.addresses), **options) as loader:
            batches = iter(loader)
            assert next(batches)["__index__"].tolist() == [0, 1, 2, 3]
            with pytest.raises(sw.DataError, match="no such number") as caught:
                list(batches)
            assert caught.value.key == "9"
        servers.process(0).send_signal(number)
        assert servers.process(0).wait(60) == 0


def test_it_takes_datasets_under_a_token_and_ends_with_its_job(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with BatchServers(None, 1, "--token-file", token, "--job", 1) as servers:
        assert token.stat().st_mode & 0o777 == 0o600
        service = sw.service(servers.addresses, token_file=token)
        data = sw.wrap([1, 2, 3]).map(lambda sample: {"value": sample["value"] * 2})
        with sw.DataLoader(
            data, batch_size=3, executor=service, output="numpy", rank=0, world_size=1
        ) as loader:
            [batch] = loader
        assert batch["value"].tolist() == [2, 4, 6]
        assert servers.process(0).wait(60) == 0
        assert token.read_text().strip() not in " ".join(map(str, servers.process(0).args))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "0"], "--token-file"),
        (["shards.tar", "--port", "0"], "module:name"),
        (["no.such:data", "--port", "0"], "no module"),
        (["a:b", "--port", "0", "--host", "0.0.0.0"], "can be reached from other machines"),
        (["a:b", "--port", "70000"], "70000"),
        (["a:b", "--port", "0", "--transport", "ucx"], "--transport ucx trusts its clients"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments: list[str], message: str) -> None:
    result = run("serve", *arguments, exit_code=2)
    assert message in result.stderr


def test_a_function_that_needs_arguments_is_refused_with_their_names(tmp_path: Path) -> None:
    path = tmp_path / "data.py"
    path.write_text("def train(split, *, size, seed=0, **more):\n    raise AssertionError\n")
    result = run("serve", f"{path}:train", "--port", "0", exit_code=2)
    assert f"{path}:train needs split, size: it is called without arguments" in result.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, size=3)
    with BatchServers(path, 1) as servers:
        port = servers.addresses[0].rpartition(":")[2]
        result = run("serve", f"{path}:dataset", "--port", port, exit_code=1)
    assert "in use" in result.stderr
    assert port in result.stderr
