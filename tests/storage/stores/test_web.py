"""JSON from a web service: credentials stay with the host that they are for."""

from __future__ import annotations

import json

import pytest

from shardwise.storage.requests.failures import AttemptError
from shardwise.storage.stores.web import Web, json_page
from tests.storage.stores.test_hub import reply, serving

HEADERS = {"Authorization": "Bearer t0ken"}


def test_a_redirect_to_another_host_is_followed_with_the_body_and_without_the_token():
    bodies = []

    def there(handler):
        bodies.append(handler.rfile.read(int(handler.headers.get("Content-Length", 0))))
        reply(handler, 200, b'{"n": 1}', X_More="yes")

    with serving(there) as (other, asked_there):

        def here(handler):
            handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
            reply(handler, 307, Location=f"{other}/page")

        with serving(here) as (url, asked_here):
            page, headers = json_page(f"{url}/x", web=Web(HEADERS, 60), body={"a": 2})
    assert page == {"n": 1}
    assert headers["X-More"] == "yes"
    assert json.loads(bodies[0]) == {"a": 2}
    assert asked_here[0][2]["authorization"] == "Bearer t0ken"
    assert "authorization" not in asked_there[0][2]


def test_a_redirect_on_the_same_host_keeps_the_token():
    def answer(handler):
        if handler.path == "/a":
            return reply(handler, 302, Location="/b")
        return reply(handler, 200, b"[]")

    with serving(answer) as (url, asked):
        assert json_page(f"{url}/a", web=Web(HEADERS, 60))[0] == []
    assert [headers["authorization"] for _, _, headers in asked] == ["Bearer t0ken"] * 2


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b"", "denied"),
        (404, b"", "missing"),
        (503, b"", "passing"),
        (200, b"<html>", "refused"),
    ],
)
def test_failures_have_their_kinds(status, body, kind):
    with serving(lambda handler: reply(handler, status, body)) as (url, _):
        with pytest.raises(AttemptError) as caught:
            json_page(url, web=Web(HEADERS, 60))
    assert caught.value.kind == kind
    assert "t0ken" not in str(caught.value)


def test_a_server_that_is_away_may_come_back():
    with serving(lambda handler: None) as (url, _):
        pass
    with pytest.raises(AttemptError, match="no connection") as caught:
        json_page(url, web=Web({}, 60))
    assert caught.value.kind == "passing"
