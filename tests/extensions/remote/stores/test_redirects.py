"""Where redirects lead, the user's headers do not follow; and redirects can be forbidden."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager

import pytest

from shardwise.base.errors import DataError, StorageError
from shardwise.storage import StorageOptions, open_file
from shardwise.storage.write import upload
from tests.extensions.remote.stores.test_hub import CONTENT
from tests.support.web import reply, send_range, serving

OWN = {"X-Api-Key": "KEYCANARY", "PRIVATE-TOKEN": "TOKENCANARY", "Authorization": "Bearer BEARER"}


@contextmanager
def redirecting():
    """A server that sends readers to another one, or to another path; and what both were asked."""
    with serving(lambda handler: send_range(handler, CONTENT)) as (there, asked_there):

        def answer(handler):
            if handler.path == "/away":
                return reply(handler, 302, Location=f"{there}/x")
            if handler.path == "/near":
                return reply(handler, 307, Location="/here")
            return send_range(handler, CONTENT)

        with serving(answer) as (url, asked_here):
            yield url, asked_here, asked_there


@pytest.mark.parametrize(
    "headers", [OWN, {"Authorization": "Bearer BEARER"}], ids=["own", "authorization"]
)
def test_the_users_headers_stay_with_the_first_host(headers):
    with redirecting() as (url, asked_here, asked_there):
        file = open_file(f"{url}/away", options=StorageOptions.of({"headers": headers}))
        assert file.stat().num_bytes == len(CONTENT)
        assert file.read(100, 300) == CONTENT[100:400]
    assert asked_there
    for _, _, sent in asked_here:
        assert {name.lower(): value for name, value in headers.items()}.items() <= sent.items()
    for _, _, sent in asked_there:
        assert not {name.lower() for name in headers} & sent.keys()
        assert "CANARY" not in str(sent)


@pytest.mark.parametrize(
    ("redirects", "path", "is_followed"),
    [
        ("any", "/away", True), ("any", "/near", True),
        ("same-host", "/away", False), ("same-host", "/near", True),
        ("none", "/away", False), ("none", "/near", False), ("none", "/direct", True),
    ],
)  # fmt: skip
def test_redirects_are_followed_as_far_as_they_are_allowed(redirects, path, is_followed):
    options = StorageOptions.of({"redirects": redirects, "headers": {"X-Key": "KEYCANARY"}})
    with redirecting() as (url, asked_here, asked_there):
        file = open_file(f"{url}{path}", options=options)
        if is_followed:
            assert file.read(5, 7) == CONTENT[5:12]
            # On the same host the headers are sent again.
            assert {sent["x-key"] for _, _, sent in asked_here} == {"KEYCANARY"}
        else:
            with pytest.raises(StorageError, match=f"redirects='{redirects}' forbids") as caught:
                file.read(5, 7)
            assert "CANARY" not in str(caught.value)
            assert not asked_there
            # Another attempt would end the same.
            assert len(asked_here) == 1


def test_redirects_of_a_store_that_can_not_be_held_back_are_refused():
    file = open_file("s3://bucket/a.tar", options=StorageOptions.of({"redirects": "none"}))
    with pytest.raises(StorageError, match="redirects='none' can't be kept for 's3://bucket'"):
        file.stat()
    with pytest.raises(ValueError, match="redirects='some'"):
        StorageOptions(redirects="some")


def test_the_headers_are_sent_to_every_server_that_is_read_with_one_setting():
    options = StorageOptions.of({"headers": {"Authorization": "Bearer BEARER"}, "redirects": "any"})
    for _ in range(2):
        with serving(lambda handler: send_range(handler, CONTENT)) as (url, asked):
            assert open_file(f"{url}/a.tar", options=options).read(0, 3) == CONTENT[:3]
        assert [sent.get("authorization") for _, _, sent in asked] == ["Bearer BEARER"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda handler: reply(handler, 200, CONTENT), "ignores the Range header"),
        (lambda handler: reply(handler, 404), "no such file: HTTP 404"),
        (lambda handler: reply(handler, 403), "check the credentials"),
        (lambda handler: reply(handler, 302, Location="file:///etc/passwd"), "HTTP 302"),
        (lambda handler: reply(handler, 302, Location=handler.path), "HTTP 302"),
        (lambda handler: reply(handler, 206, b"ab", Content_Range="bytes 7-8/9"), "sent bytes 7"),
        (lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"), "the reply failed"),
        (lambda handler: handler.close_connection, "no connection|the reply failed"),
    ],
)
def test_what_a_server_does_wrong_is_told_as_with_other_stores(answer, told):
    options = {"headers": {"X-Key": "KEYCANARY"}, "max_attempts": 2, "attempt_timeout_s": 3}
    with serving(answer) as (url, _):
        file = open_file(f"{url}/a.tar?X-Sig=SIGCANARY", options=StorageOptions.of(options))
        with pytest.raises(OSError, match=told) as caught:
            file.read(0, 4)
    assert "CANARY" not in str(caught.value)


def test_a_file_is_read_whole_in_its_version_and_stored(tmp_path):
    content = CONTENT * 1000
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    stored = {}

    def answer(handler):
        if handler.command == "PUT":
            stored[handler.path] = handler.rfile.read(int(handler.headers["Content-Length"]))
            return reply(handler, 201)
        if handler.headers.get("If-Match", etag) != etag:
            return reply(handler, 412)
        return send_range(handler, content)

    options = StorageOptions.of({"headers": {"X-Key": "v"}})
    with serving(answer) as (url, _):
        file = open_file(f"{url}/a b%20c.tar", options=options)
        assert file.stat().etag == etag
        assert file.read(0, len(content)) == content
        (tmp_path / "x").write_bytes(b"of a file")
        upload(f"{url}/new", tmp_path / "x", options=options)
        upload(f"{url}/newer", b"of bytes", options=options)
    assert stored == {"/new": b"of a file", "/newer": b"of bytes"}


@pytest.mark.parametrize("settings", [{}, {"headers": {"X-Key": "v"}}])
def test_a_server_that_refuses_every_range_is_told_of(settings):
    def answer(handler):
        if handler.command == "HEAD" or handler.headers.get("Range") == "bytes=0-0":
            handler.send_response(206, "OK")
            handler.send_header("Content-Range", "bytes 0-0/286720")
            handler.send_header("Content-Length", "286720" if handler.command == "HEAD" else "1")
            handler.end_headers()
            return handler.wfile.write(b"x" if handler.command == "GET" else b"")
        return reply(handler, 416, Content_Range="bytes */286720")

    with serving(answer) as (url, _):
        file = open_file(f"{url}/a.tar", options=StorageOptions.of(settings))
        with pytest.raises(DataError, match=r"refuses bytes 0 to 16384 .* has 286720 bytes"):
            file.read(0, 16384)


def test_a_name_with_an_empty_part_is_told_of():
    options = StorageOptions.of({"aws_skip_signature": "true"})
    with pytest.raises(StorageError, match=r"can't read 's3://b/a//b.tar': the name has an empty"):
        open_file("s3://b/a//b.tar", options=options).read(0, 1)
