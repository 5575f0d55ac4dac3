"""The faults of the servers and proxies: as many as they say, and nothing is left of them."""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.server_process import require_binary
from tests.support.servers import nginx, s3_gateway
from tests.support.signing import plain_request

DATA = random.Random(0).randbytes(100_000)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


def test_the_gateway_has_no_etags_where_none_are_asked_for(tmp_path: Path) -> None:
    with s3_gateway(tmp_path, etag=False) as s3:
        s3.put("a", DATA)
        assert not s3.request("GET", "a").expect(200).headers.get("etag", "").strip('"')


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_a_proxy_breaks_bodies(tmp_path: Path, fault: str) -> None:
    (tmp_path / "a").write_bytes(DATA)
    with nginx(tmp_path) as server, FaultProxy(server.url, **{f"{fault}_share": 0.5}) as proxy:
        found: Counter[str] = Counter()
        for _ in range(40):
            try:
                assert plain_request(f"{proxy.url}/a").expect(200).body == DATA
                found["whole"] += 1
            except (OSError, HTTPException) as error:
                found[type(error).__name__] += 1
        kind = {"cut": "IncompleteRead", "reset": "ConnectionResetError"}[fault]
        assert found == {"whole": 40 - found[kind], kind: proxy.counts()[fault]}
        assert 0 < found[kind] < 40


def test_a_proxy_stalls_until_the_client_gives_up(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    with nginx(tmp_path) as server, FaultProxy(server.url, stall_share=1, cut_after=10) as proxy:
        with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2]))) as client:
            client.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            client.settimeout(60)
            got = b""
            while not got.endswith(DATA[:10]):
                got += client.recv(65536)
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
        proxy.change(stall_share=0.0)
        assert plain_request(f"{proxy.url}/a").expect(200).body == DATA
        assert proxy.counts()["stall"] == 1


def test_a_proxy_answers_errors_hides_etags_and_repeats_itself(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)

    def statuses() -> list[int]:
        faults = {"error_share": 0.4, "error_status": 500, "hide_etag": True, "latency_s": 0.001}
        with FaultProxy(server.url, seed=3, **faults) as proxy:
            replies = [plain_request(f"{proxy.url}/a") for _ in range(30)]
        assert not any({"etag", "last-modified"} & set(reply.headers) for reply in replies)
        return [reply.status for reply in replies]

    with nginx(tmp_path) as server:
        first = statuses()
        assert set(first) == {200, 500}
        assert statuses() == first


def test_a_missing_program_skips_and_fails_where_the_suite_must_be_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-server"):
        require_binary("no-such-server", package="apt-get install it")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install it"):
        require_binary("no-such-server", package="apt-get install it")
    assert os.environ["CI"]
