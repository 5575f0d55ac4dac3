"""AIStore, against a small stand-in on the loopback: a gateway and a target."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from shardwise.errors import MissingShardError, StorageError
from shardwise.storage import StorageOptions, expand, open_file
from tests.storage.test_hub import CONTENT, reply, send_range, serving

OBJECTS = ["train/000.tar", "train/001.tar", "train/deep/002.tar", "val/000.tar"]


@contextmanager
def aistore():
    """A gateway; yields its URL, what was asked of it, and of the target."""
    with serving(lambda handler: send_range(handler, CONTENT)) as (target, asked_of_target):

        def answer(handler):
            if handler.headers.get("Authorization") != "Bearer ais_t0ken":
                return reply(handler, 401)
            if handler.path.startswith("/v1/buckets/b?"):
                return list_page(handler)
            name = handler.path.removeprefix("/v1/objects/b/")
            if name not in OBJECTS:
                return reply(handler, 404)
            return reply(handler, 307, Location=f"{target}{handler.path}?pid=1")

        def list_page(handler):
            asked = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
            assert asked["action"] == "list"
            value = asked["value"]
            names = [name for name in OBJECTS if name.startswith(value["prefix"])]
            at = int(value.get("continuation_token") or 0)
            assert not at or value["uuid"] == "u1"
            page = {
                "uuid": "u1",
                "entries": [{"n": name} for name in names[at : at + 2]],
                "continuation_token": str(at + 2) if at + 2 < len(names) else "",
            }
            return reply(handler, 200, json.dumps(page).encode())

        with serving(answer) as (url, asked):
            yield url, asked, asked_of_target


def test_the_redirect_to_a_target_is_followed_and_the_token_stays_with_the_gateway():
    with aistore() as (url, asked, asked_of_target):
        options = StorageOptions.of({"endpoint": url, "token": "ais_t0ken"})
        file = open_file("ais://b/train/000.tar", options=options)
        assert file.read(7, 9) == CONTENT[7:16]
        assert file.stat().num_bytes == len(CONTENT)
        assert {headers["authorization"] for _, _, headers in asked} == {"Bearer ais_t0ken"}
        assert asked_of_target[0][2]["range"] == "bytes=7-15"
        for _, _, headers in asked_of_target:
            assert "authorization" not in headers


def test_buckets_are_listed_page_by_page():
    with aistore() as (url, _, _):
        options = StorageOptions.of({"endpoint": url, "token": "ais_t0ken"})
        found = expand("ais://b/train/", options=options)
        assert found == ["ais://b/train/000.tar", "ais://b/train/001.tar"]
        assert expand("ais://b/**/*.tar", options=options) == [f"ais://b/{n}" for n in OBJECTS]


def test_a_missing_object_and_a_missing_endpoint_are_told(monkeypatch):
    with aistore() as (url, _, _):
        options = StorageOptions.of({"endpoint": url, "token": "ais_t0ken"})
        with pytest.raises(MissingShardError):
            open_file("ais://b/none", options=options).read(0, 1)
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(StorageError, match="AIS_ENDPOINT"):
        open_file("ais://b/x", options=StorageOptions(max_attempts=5)).read(0, 1)


def test_the_gateway_and_the_token_come_from_the_environment_too(monkeypatch, tmp_path):
    with aistore() as (url, _, _):
        (tmp_path / "token").write_text("ais_t0ken")
        monkeypatch.setenv("AIS_ENDPOINT", url)
        monkeypatch.delenv("AIS_AUTHN_TOKEN", raising=False)
        monkeypatch.setenv("AIS_AUTHN_TOKEN_FILE", str(tmp_path / "token"))
        options = StorageOptions(max_attempts=4)
        assert open_file("ais://b/val/000.tar", options=options).read(0, 3) == CONTENT[:3]
