"""The stand-in for AIStore answers as the cluster did that was recorded."""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.ais_cluster import ais_cluster

EXCHANGES = json.loads((Path(__file__).parent / "data/aistore_exchanges.json").read_text())
CONTENT, NEWER = bytes(range(200)), bytes(range(199, -1, -1))
# What differs from cluster to cluster and from time to time.
CHANGING = re.compile(
    r"pid=\w+|utm=\w+|gbt-[^?]*|(?<=-)[a-z0-9]{12,16}(?=\"$)|\b[tp]\[\w+\]|127\.0\.0\.1:\d+"
    r"|[A-Z][a-z]{2}, \d\d .* GMT|\d{19}|2026-11-22T[\d:]+Z"
)
CHANGING_ENTRIES = ("remote_addr", "node", "uuid")


def fixed(text):
    """A text, an XML document or the entries of a JSON document, without what changes."""
    if text.lstrip().startswith("{"):
        found = {n: v for n, v in json.loads(text).items() if n not in CHANGING_ENTRIES}
        return found | {"message": CHANGING.sub("~", found.get("message", ""))}
    return CHANGING.sub("~", text).replace("\n", "")


def compared(headers):
    return {name: fixed(value) for name, value in headers.items() if name != "Content-Length"}


def ask(step, port, path, body):
    connection = HTTPConnection("127.0.0.1", port, timeout=1)
    headers = {k: v for k, v in step["request_headers"].items() if k != "Content-Length"}
    try:
        connection.request(step["method"], path, body=body or None, headers=headers)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def cluster():
    with ais_cluster(num_targets=3) as found:
        found.objects.clear()
        yield found


def test_recorded_requests_get_the_recorded_answers(cluster, subtests):
    # In their order: the first ones write what the others read.
    for recorded in EXCHANGES["exchanges"]:
        with subtests.test(recorded["note"]):
            check(cluster, recorded)


def check(cluster, recorded):
    note, place, before = recorded["note"], cluster.endpoint, {}
    if "starting" in note:
        cluster.refusal = (400, "ErrNoNodes", "no storage targets in the cluster")
    for step in recorded["exchange"]:
        address = urlsplit(place)
        path = place.partition(address.netloc)[2] or step.get("path")
        if step.get("error") == "TimeoutError":
            with pytest.raises(TimeoutError):
                ask(before, address.port, path, before["request_body"])
        if "error" in step:
            continue
        body = step.get("request_body", "")
        if body == "(200 bytes)":
            body = NEWER if "over an object" in note else CONTENT
        status, headers, answer = ask(step, address.port, path, body)
        assert status == step["status"]
        assert compared(headers) == compared(step["headers"])
        kind = headers.get("Content-Type", "")
        if "html" not in kind and "body_base64" not in step and step["method"] != "HEAD":
            if "x-tar" not in kind:
                assert fixed(answer.decode("latin-1")) == fixed(step["body"])
            elif "not there" not in note:
                assert len(answer) == step["body_bytes"]
        before, place = step, headers.get("Location", "")
