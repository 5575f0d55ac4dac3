"""The servers of the tests: each starts, answers a range, refuses a wrong key and is gone."""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.server_process import require_binary
from tests.support.servers import azurite, nginx, s3_gateway
from tests.support.signing import plain_request

DATA = random.Random(0).randbytes(100_000)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


def test_the_gateway_serves_ranges_to_the_right_key_only(tmp_path: Path) -> None:
    with s3_gateway(tmp_path, access_log=True) as s3:
        assert s3.put("train/000.tar", DATA) == "s3://bucket/train/000.tar"
        reply = s3.request("GET", "train/000.tar", range="bytes=10-19").expect(206)
        assert reply.body == DATA[10:20]
        etag = reply.headers["etag"]
        s3.request("GET", "train/000.tar", if_match='"other"').expect(412)
        s3.request("GET", "train/000.tar", if_match=etag).expect(200)
        replace(s3, secret_key="another-secret").request("GET", "train/000.tar").expect(403)
        replace(s3, access_key="NOBODY").request("GET", "train/000.tar").expect(403)
        s3.request("GET", "train/001.tar").expect(404)
        replace(s3, bucket="gone").request("GET", "train/000.tar").expect(404)
        s3.delete("train/000.tar")
        s3.request("GET", "train/000.tar").expect(404)
        seen = s3.requests()
        assert [each["method"] for each in seen] == ["PUT"] + ["GET"] * 7 + ["DELETE", "GET"]
        assert seen[1] == seen[1] | {
            "path": "/bucket/train/000.tar",
            "range": "bytes=10-19",
            "status": 206,
            "num_bytes": 10,
        }


def test_the_gateway_has_no_etags_where_none_are_asked_for(tmp_path: Path) -> None:
    with s3_gateway(tmp_path, etag=False) as s3:
        s3.put("a", DATA)
        assert not s3.request("GET", "a").expect(200).headers.get("etag", "").strip('"')


def test_nginx_serves_ranges_counts_requests_and_asks_for_a_token(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(DATA)
    with nginx(tmp_path, bearer="word") as server:
        url = f"{server.url}/a.tar"
        plain_request(url).expect(401)
        plain_request(url, headers={"Authorization": "Bearer other"}).expect(401)
        known = {"Authorization": "Bearer word"}
        reply = plain_request(url, headers={**known, "Range": "bytes=10-19"}).expect(206)
        assert reply.body == DATA[10:20]
        assert reply.headers["etag"]
        plain_request(f"{server.url}/.nginx/nginx.conf", headers=known).expect(404)
        assert [each["status"] for each in server.requests()] == [401, 401, 206, 404]
        assert server.count() == 4


def test_nginx_fails_for_a_share_of_the_requests(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with nginx(tmp_path, share_of_503=0.3, etag=False) as server:
        replies = [plain_request(f"{server.url}/a") for _ in range(200)]
    found = Counter(reply.status for reply in replies)
    assert set(found) == {200, 503}
    assert 30 <= found[503] <= 90
    assert not any("etag" in reply.headers for reply in replies)
    assert not any("last-modified" in reply.headers for reply in replies)


def test_azurite_serves_ranges_to_the_right_key_only(tmp_path: Path) -> None:
    with azurite(tmp_path) as azure:
        assert azure.put("train/000.tar", DATA) == "az://container/train/000.tar"
        reply = azure.request("GET", "train/000.tar", range="bytes=10-19").expect(206)
        assert reply.body == DATA[10:20]
        replace(azure, key="b3RoZXI=").request("GET", "train/000.tar").expect(403)
        azure.request("GET", "train/001.tar").expect(404)


def test_a_proxy_without_faults_changes_nothing(tmp_path: Path) -> None:
    with s3_gateway(tmp_path) as direct, FaultProxy(direct.endpoint) as proxy:
        s3 = direct.behind(proxy.url)
        s3.put("a", DATA)
        assert s3.request("GET", "a").expect(200).body == DATA
        assert s3.request("HEAD", "a").expect(200).headers["content-length"] == str(len(DATA))
        s3.delete("a")
        counts = proxy.counts()
        assert (counts["requests"], counts["GET"], counts["PUT"]) == (4, 1, 1)
        assert counts["cut"] == counts["reset"] == counts["stall"] == counts["error"] == 0
        assert counts["bytes"] >= len(DATA)


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
