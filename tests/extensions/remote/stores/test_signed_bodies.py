"""Long ranges by signed URLs: the right bytes of one version, faults made good, no secret shown."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import socket
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta

import pytest

from shardwise.base.errors import StaleIndexError, StorageError
from shardwise.extensions.remote.remote_file import PinnedObject
from shardwise.extensions.remote.stores import connect, credential_discovery, signed_bodies
from shardwise.extensions.remote.stores.signed_bodies import _BUFFER_BYTES, _Buffers
from shardwise.storage import StorageOptions
from shardwise.storage.client import AttemptError
from tests.support.fault_proxy import FaultProxy
from tests.support.io_counts import counted_io
from tests.support.python_code import printed_by
from tests.support.servers import s3_gateway
from tests.support.waiting import wait_for
from tests.support.web import reply, send_range, serving

SIZE = 20_000_000
CONTENT = random.Random(7).randbytes(SIZE)
KEYS = {"aws_access_key_id": "AKIDTEST", "aws_secret_access_key": "SECRET"}


def opened(url, options):
    location = connect.location_of(url)
    return connect.open_client(location, options), location.key


@pytest.fixture
def url(s3):
    return s3.put("long/a b+ü%.tar", CONTENT)


def read_long(url, options, *, start=5, stop=SIZE, pinned=None):
    """A range as a plan reads it ahead; its bytes are compared before their buffers are reused."""
    file = PinnedObject(url, options)
    if pinned is not None:
        file.pin(pinned)
    at = start

    def compare(part):
        nonlocal at
        assert part.data == CONTENT[at : at + len(part.data)]
        at += len(part.data)

    file.process.run(file.stream(start, stop, compare))
    assert at == stop
    return file


async def read_all(client, key):
    async with aclosing(client.stream(key, 0, SIZE, "", 1 << 20)) as replies:
        async for _ in replies:
            pass


def num_files():
    return len(os.listdir("/proc/self/fd"))


def test_long_ranges_are_one_signed_request_each(s3, url):
    options = StorageOptions(**s3.unhedged)
    with counted_io() as counts:
        file = read_long(url, options)
        read_long(url, options, start=1_000_000, stop=9_500_000, pinned=file.stat)
    seen = [r for r in s3.requests() if r["method"] == "GET" and r["path"].startswith("/")]
    signed = [r for r in seen if "X-Amz-Signature" in r["path"]]
    assert [r["num_bytes"] for r in signed] == [SIZE - 5, 8_500_000]
    assert counts["requests"] == 2
    assert counts["bytes"] == SIZE - 5 + 8_500_000


def test_another_version_is_an_error(s3, url):
    options = StorageOptions(**s3.unhedged)
    pinned = read_long(url, options).stat
    s3.put("long/a b+ü%.tar", CONTENT[::-1])
    with pytest.raises(StaleIndexError, match="replaced"):
        read_long(url, options, pinned=pinned)


@pytest.mark.parametrize("hide_etag", [False, True])
def test_cut_reset_stalled_and_failing_bodies_are_made_good(s3, url, hide_etag):
    faults = {"cut_share": 0.25, "reset_share": 0.25, "error_share": 0.2, "stall_share": 0.1}
    signed = "X-Amz-Signature"
    with FaultProxy(s3.endpoint, seed=5, hide_etag=hide_etag, only=signed, **faults) as proxy:
        options = StorageOptions(config=s3.behind(proxy.url).config, attempt_timeout_s=2.0)
        with counted_io() as counts:
            for _ in range(8):
                read_long(url, options)
        seen = proxy.counts()
    assert seen["cut"]
    assert seen["reset"]
    assert seen["error"]
    assert counts["retries"]


def test_a_body_that_stalls_is_resumed_after_an_attempts_time_without_hedges(s3, url):
    faults = {"stall_share": 1.0, "cut_after": 3_000_000, "only": "X-Amz-Signature"}
    with FaultProxy(s3.endpoint, **faults) as proxy:
        config = s3.behind(proxy.url).config
        options = StorageOptions(config=config, hedge=False, attempt_timeout_s=0.5)
        with counted_io() as counts:
            read_long(url, options)
        assert proxy.counts()["stall"] == 2
    assert counts["retries"] == 2


def test_a_store_that_comes_back_in_the_middle_of_a_body_is_read_on(s3, url):
    with FaultProxy(s3.endpoint, stall_share=1.0, cut_after=3_000_000) as proxy:
        options = StorageOptions(config=s3.behind(proxy.url).config, hedge=False)
        file = PinnedObject(url, options)
        received = bytearray()
        reading = file.process.start(file.stream(0, SIZE, lambda part: received.extend(part.data)))
        wait_for(lambda: len(received) > 1_000_000)
        proxy.leave()
        proxy.faults = type(proxy.faults)()
        proxy.come_back()
        reading.result(60)
    assert received == CONTENT


def answering(content, **headers):
    def answer(handler):
        if "X-Amz-Signature" not in handler.path:
            send_range(handler, content)
        elif "status" in headers:
            other = {name: value for name, value in headers.items() if name != "status"}
            reply(handler, headers["status"], b"<Code>No</Code>", **other)

    return answer


@pytest.mark.parametrize("status", [200, 302, 400, 403])
def test_a_store_that_refuses_signed_urls_is_read_by_obstore_and_reported_once(status, caplog):
    with serving(answering(CONTENT, status=status, Location="http://127.0.0.1:9/x")) as (url, seen):
        options = StorageOptions(config={**KEYS, "aws_endpoint": url}, hedge=False)
        with caplog.at_level(logging.WARNING, "shardwise"):
            for _ in range(3):
                read_long("s3://bucket/x.tar", options)
    assert sum("X-Amz-Signature" in path for _, path, _ in seen) == 1
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert text.count("refuses signed URLs") == 1
    assert url in text
    assert "X-Amz" not in text


def test_signed_urls_are_tried_again_after_a_pause_that_grows_until_one_is_accepted(
    monkeypatch, caplog
):
    """Keys that expired, a policy of one object or a clock may be the reason of a refusal."""
    now = 1000.0
    monkeypatch.setattr(signed_bodies.time, "monotonic", lambda: now)
    status = 403

    def answer(handler):
        if "X-Amz-Signature" in handler.path and status == 403:
            reply(handler, 403, b"<Code>ExpiredToken</Code>")
        else:
            send_range(handler, CONTENT)

    with serving(answer) as (url, seen):
        options = StorageOptions(config={**KEYS, "aws_endpoint": url}, hedge=False)
        client, key = opened("s3://bucket/x.tar", options)

        def num_signed():
            before = len(seen)
            with suppress(AttemptError):
                asyncio.run(read_all(client, key))
            return sum("X-Amz-Signature" in path for _, path, _ in seen[before:])

        assert [num_signed(), num_signed()] == [1, 0]
        now += 61
        assert [num_signed(), num_signed()] == [1, 0]
        now += 61
        assert num_signed() == 0
        now += 61
        status = 206
        assert [num_signed(), num_signed()] == [1, 1]
        status = 403
        assert [num_signed(), num_signed()] == [1, 0]
        now += 61
        assert num_signed() == 1
    # The refusals in a row are one warning.
    assert caplog.text.count("refuses signed URLs") == 2


def test_failures_show_no_signature():
    """Whatever a server answers, or none that listens."""

    async def failure(endpoint):
        options = StorageOptions(config={**KEYS, "aws_endpoint": endpoint}, attempt_timeout_s=1.0)
        client, key = opened("s3://bucket/x.tar", options)
        with pytest.raises(AttemptError) as caught:
            async with aclosing(client.stream(key, 0, 9 << 20, "", 1 << 20)) as replies:
                async for _ in replies:
                    pass
        return f"{caught.value!r} {caught.value.__context__!r} {client!r}"

    def short(handler):
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 7-9437183/9437184")
        handler.send_header("Content-Length", "9437177")
        handler.end_headers()

    with serving(short) as (url, _):
        text = asyncio.run(failure(url))
    assert "bytes 7 to" in text
    text += asyncio.run(failure("http://127.0.0.1:9"))
    assert "Signature" not in text
    assert "AKIDTEST" not in text


def test_a_refusal_that_repeats_the_url_shows_no_signature(caplog):
    def repeat(handler):
        if "X-Amz-Signature" in handler.path:
            text = f"<Code>No</Code><Message>no {handler.path} here</Message>"
            reply(handler, 403, text.encode())
        else:
            send_range(handler, CONTENT)

    with serving(repeat) as (url, _), caplog.at_level(logging.DEBUG):
        options = StorageOptions(config={**KEYS, "aws_endpoint": url}, hedge=False)
        read_long("s3://bucket/x.tar", options)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "No: no /bucket/x.tar?..." in text
    assert "X-Amz" not in text


def test_a_password_in_the_endpoint_is_neither_shown_nor_looked_up_as_a_host(caplog):
    with serving(answering(CONTENT, status=403)) as (url, seen):
        endpoint = url.replace("http://", "http://user:s3cr3t@")
        options = StorageOptions(config={**KEYS, "aws_endpoint": endpoint}, hedge=False)
        with caplog.at_level(logging.DEBUG):
            read_long("s3://bucket/x.tar", options)
    assert "X-Amz-Signature" in seen[0][1]
    assert "refuses signed URLs" in caplog.text
    assert "s3cr3t" not in caplog.text


def test_a_signed_url_goes_to_no_host_with_tls(monkeypatch):
    """obstore prefers this variable to the settings."""
    with serving(lambda handler: reply(handler, 404)) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url.replace("http://", "https://"))
        config = {**KEYS, "aws_endpoint": "http://127.0.0.1:9"}
        client, key = opened("s3://bucket/x.tar", StorageOptions(config=config))
        with pytest.raises(AttemptError, match="TLS"):
            asyncio.run(read_all(client, key))
    assert not seen
    assert client._signed.is_refused


def test_a_name_that_no_url_can_have_is_an_error_for_that_name_alone(s3, url, caplog):
    options = StorageOptions(**s3.unhedged)
    with pytest.raises(StorageError, match="empty part"):
        read_long(s3.url("long//x.tar"), options)
    file = read_long(url, options)
    assert not file.client().client._signed.is_refused
    assert "refuses" not in caplog.text


def test_an_exit_while_urls_are_signed_waits_for_nothing(s3, url):
    printed = printed_by(
        """
        import sys
        from shardwise.extensions.remote.remote_file import PinnedObject
        from shardwise.storage import StorageOptions

        options = StorageOptions(config=eval(sys.argv[2]))
        files = [PinnedObject(sys.argv[1], options) for _ in range(6)]
        process = files[0].process
        reads = [process.start(file.stream(0, 20_000_000, len)) for file in files]
        process.end()
        print(process.loop.is_closed())
        """,
        url,
        s3.config,
    )
    assert printed == "True"


def test_failed_replies_leave_no_socket_open():
    """Not even until the collector finds their errors."""

    def cut(handler):
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{SIZE - 1}/{SIZE}")
        handler.send_header("Content-Length", str(SIZE))
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(CONTENT[:3_000_000])

    with serving(cut) as (url, _):
        options = StorageOptions(config={**KEYS, "aws_endpoint": url})
        client, key = opened("s3://bucket/x.tar", options)

        async def fail():
            for _ in range(20):
                with pytest.raises(AttemptError, match="bytes where"):
                    await read_all(client, key)

        before = num_files()
        gc.disable()
        try:
            asyncio.run(fail())
            wait_for(lambda: num_files() < before + 10, seconds=20)
        finally:
            gc.enable()


def test_requests_that_end_together_leave_one_timer(s3, url):
    """Of others, each would free the buffers that later requests use again."""
    client, key = opened(url, StorageOptions(**s3.unhedged))

    async def num_timers():
        await asyncio.gather(*(read_all(client, key) for _ in range(3)))
        clear = client._signed._buffers.clear
        timers = asyncio.get_running_loop()._scheduled
        return sum(each._callback == clear for each in timers if not each.cancelled())

    assert asyncio.run(num_timers()) == 1


@pytest.mark.parametrize(
    ("config", "environment"),
    [
        ({"aws_request_payer": "true"}, {}),
        ({"aws_skip_signature": "true"}, {}),
        ({"user_agent": "x"}, {}),
        ({}, {"http_proxy": "http://127.0.0.1:9"}),
        ({}, {"AWS_SKIP_SIGNATURE": "true"}),
        ({"aws_endpoint": "https://127.0.0.1:9"}, {}),
    ],
)
def test_settings_that_signed_urls_cannot_keep_leave_the_reads_to_obstore(
    config, environment, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = {**KEYS, "aws_endpoint": "http://127.0.0.1:9", **config}
    client, _ = opened("s3://bucket/x.tar", StorageOptions(config=config))
    assert client._signed is None


def test_a_reader_that_leaves_ends_its_request(s3, url):
    """The thread ends, and the connection is not used again."""
    with FaultProxy(s3.endpoint, stall_share=1.0, cut_after=4_000_000) as proxy:
        # Far beyond the test's own bound: only the reader's leave can end it.
        options = StorageOptions(config=s3.behind(proxy.url).config, attempt_timeout_s=300)
        client, key = opened(url, options)

        async def read_a_part():
            at = 0
            async with aclosing(client.stream(key, 0, 9 << 20, "", 1 << 20)) as replies:
                async for part in replies:
                    assert part.data == CONTENT[at : at + len(part.data)]
                    at += len(part.data)
                    # The thread now waits for what never comes.
                    if at == 3 << 20:
                        break
            while client._signed._pool._num_stuck:
                await asyncio.sleep(0.01)
            assert not client._signed._pool._free

        asyncio.run(asyncio.wait_for(read_a_part(), 30))


def test_buffers_are_used_again_once_no_view_is_left():
    buffers = _Buffers()
    first, second = buffers.take(10 << 20), buffers.take(10 << 20)
    assert len(first) == len(second) == _BUFFER_BYTES
    address, kept = id(first.obj), first[100:200]
    del first
    assert id(buffers.take(10 << 20).obj) not in (address, id(second.obj))
    del kept
    gc.collect()
    assert id(buffers.take(10 << 20).obj) == address
    assert len(buffers.take(17)) == 17
    assert len(buffers._all) == 3
    buffers.clear()
    assert not buffers._all


def test_the_memory_of_a_range_is_its_length(s3, url):
    client, key = opened(url, StorageOptions(**s3.unhedged))

    async def read_all():
        async with aclosing(client.stream(key, 0, SIZE, "", 300_000)) as replies:
            return [part.data async for part in replies]

    pieces = asyncio.run(read_all())
    assert b"".join(pieces) == CONTENT
    owners = {id(piece.obj): len(piece.obj) for piece in pieces}
    assert sum(owners.values()) == SIZE
    assert not client._signed.is_refused


def test_urls_are_signed_with_the_renewed_keys_of_a_profile(s3, tmp_path, monkeypatch):
    """Keys that expired cost a refusal; the next ones are used for signed URLs, too."""
    url = s3.put("renewed.tar", CONTENT)
    keys, config = tmp_path / "keys", tmp_path / "config"

    def issue(secret):
        # botocore renews keys that end within 10 minutes at each use.
        end = datetime.now(UTC) + timedelta(minutes=5)
        issued = {"Version": 1, "AccessKeyId": s3.access_key, "SecretAccessKey": secret}
        keys.write_text(json.dumps(issued | {"Expiration": end.isoformat()}))

    config.write_text(f"[profile renewed]\ncredential_process = cat {keys}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setattr(credential_discovery, "_KEYS_LAST", timedelta(0))
    given = {name: value for name, value in s3.config.items() if "key" not in name}
    options = StorageOptions(config={**given, "aws_profile": "renewed"}, hedge=False)

    def signed():
        seen = [each for each in s3.requests() if "renewed.tar?" in each["path"]]
        return [each["status"] for each in seen if "X-Amz-Signature" in each["path"]]

    issue(s3.secret_key)
    file = read_long(url, options)
    assert signed() == [206]
    issue("expired")
    with pytest.raises(StorageError, match="SignatureDoesNotMatch"):
        read_long(url, options)
    assert signed() == [206, 403]
    issue(s3.secret_key)
    read_long(url, options)
    assert signed() == [206, 403]
    file.client().client._signed._resume_at = 0.0
    read_long(url, options)
    assert signed() == [206, 403, 206]


def test_a_session_token_is_signed_along():
    with serving(lambda handler: send_range(handler, CONTENT)) as (url, seen):
        config = {**KEYS, "aws_session_token": "TOKEN/7", "aws_endpoint": url}
        read_long("s3://bucket/x.tar", StorageOptions(config=config, hedge=False))
    assert "X-Amz-Security-Token=TOKEN%2F7" in seen[0][1]


def test_buckets_as_hosts_are_read_by_signed_urls(tmp_path, monkeypatch):
    with s3_gateway(tmp_path, domain="store.test") as s3:
        s3.put("long/a b+ü%.tar", CONTENT)
        host = f"{s3.bucket}.store.test"
        find = socket.getaddrinfo
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda name, *args: find("127.0.0.1" if name == host else name, *args),
        )
        config = {
            **s3.config,
            "aws_endpoint": s3.endpoint.replace("127.0.0.1", host),
            "aws_virtual_hosted_style_request": "true",
        }
        client, key = opened(s3.url("long/a b+ü%.tar"), StorageOptions(config=config))

        async def content():
            async with aclosing(client.stream(key, 0, SIZE, "", 1 << 20)) as replies:
                return b"".join([bytes(part.data) async for part in replies])

        assert asyncio.run(content()) == CONTENT
