"""The Hugging Face hub, against a small stand-in on the loopback."""

from __future__ import annotations

import json
from contextlib import contextmanager
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from shardwise.base.errors import StorageError
from shardwise.extensions.remote.stores.hub import hub_key
from shardwise.storage import StorageOptions, expand, open_file
from tests.support.web import reply, send_range, serving

CONTENT = bytes(range(256)) * 40
FILES = ["README.md", "train/000.tar", "train/001.tar", "train/deep/002.tar", "val/000.tar"]


@contextmanager
def hub(token="hf_t0ken", *, files=None, page=2, revision="v1"):
    """A hub and the server to which it sends readers; yields (URL, asked of both).

    Args:
        token: what it asks for.
        files: name -> content; None for `FILES`, all of them `CONTENT`.
        page: names in a page of a listing.
        revision: the only one, as it stands in URLs.
    """
    files = dict.fromkeys(FILES, CONTENT) if files is None else files

    def send(handler):
        send_range(handler, files[parse_qs(urlsplit(handler.path).query)["name"][0]])

    with serving(send) as (store, asked_of_store):

        def answer(handler):
            if handler.headers.get("Authorization") != f"Bearer {token}":
                return reply(handler, 401)
            path = urlsplit(handler.path)
            if path.path.startswith(f"/api/datasets/org/name/tree/{revision}"):
                return list_page(handler, path)
            root, _, name = path.path.partition(f"/resolve/{revision}/")
            name = unquote(name)
            if root != "/datasets/org/name" or name not in files:
                return reply(handler, 404)
            place = f"{store}/blob?signature=abc&name={quote(name, safe='')}"
            return reply(handler, 302, Location=place)

        def list_page(handler, path):
            query = parse_qs(path.query)
            root = f"/api/datasets/org/name/tree/{revision}"
            directory = unquote(path.path.removeprefix(root)).strip("/")
            inside = f"{directory}/" if directory else ""
            entries = [
                {"type": "file", "path": name}
                for name in sorted(files)
                if name.startswith(inside)
                and (query["recursive"] == ["true"] or "/" not in name[len(inside) :])
            ]
            at = int(query.get("cursor", ["0"])[-1])
            following = f"{handler.path}&cursor={at + page}"
            host = f"http://{handler.headers['Host']}"
            is_cut = at + page < len(entries)
            more = {"Link": f'<{host}{following}>; rel="next"'} if is_cut else {}
            return reply(handler, 200, json.dumps(entries[at : at + page]).encode(), **more)

        with serving(answer) as (url, asked):
            yield url, asked, asked_of_store


def test_a_file_is_read_where_the_hub_sends_us_and_the_token_stays_behind():
    with hub() as (url, asked, asked_of_store):
        options = StorageOptions.of({"endpoint": url, "token": "hf_t0ken"})
        file = open_file("hf://datasets/org/name@v1/train/000.tar", options=options)
        assert file.read(300, 50) == CONTENT[300:350]
        assert file.stat().num_bytes == len(CONTENT)
        assert {headers["authorization"] for _, _, headers in asked} == {"Bearer hf_t0ken"}
        assert asked_of_store
        for _, _, headers in asked_of_store:
            assert not set(headers) & {"authorization", "cookie"}
        assert asked_of_store[0][2]["range"] == "bytes=300-349"


@pytest.mark.parametrize("own", [{}, {"headers": {"X-Key": "v"}}])
def test_the_token_of_the_environment_goes_to_the_server_of_the_environment_only(monkeypatch, own):
    monkeypatch.setenv("HF_TOKEN", "hf_t0ken")
    url = "hf://datasets/org/name@v1/train/000.tar"
    with hub() as (here, _, _), hub() as (elsewhere, asked_elsewhere, _):
        monkeypatch.setenv("HF_ENDPOINT", here)
        for endpoint in ({}, {"endpoint": here}):
            options = StorageOptions.of({**endpoint, **own})
            assert open_file(url, options=options).read(0, 4) == CONTENT[:4]
        options = StorageOptions.of({"endpoint": elsewhere, **own})
        with pytest.raises(StorageError, match="401"):
            open_file(url, options=options).read(0, 4)
        assert asked_elsewhere
        assert not any("authorization" in headers for _, _, headers in asked_elsewhere)
        # Who gives it by name wants it there.
        options = StorageOptions.of({"endpoint": elsewhere, "token": "hf_t0ken", **own})
        assert open_file(url, options=options).read(0, 4) == CONTENT[:4]
        assert expand("hf://datasets/org/name@v1/train/", options=options)


def test_a_wrong_token_may_be_one_for_other_datasets():
    with hub() as (url, _, _):
        wrong = StorageOptions.of({"endpoint": url, "token": "hf_wr0ng"})
        with pytest.raises(StorageError, match=r"401.* private or gated"):
            expand("hf://datasets/org/name@v1/train/", options=wrong)


@pytest.mark.parametrize(
    ("body", "headers", "told"),
    [
        (b"[]", {"Link": '<http://elsewhere/api?x=1>; rel="next"'}, "another host: not followed"),
        (b"<html>", {}, "the reply is not JSON"),
    ],
)
def test_a_listing_that_leads_elsewhere_or_is_none_is_an_error(body, headers, told):
    with serving(lambda handler: reply(handler, 200, body, **headers)) as (url, _):
        options = StorageOptions.of({"endpoint": url, "token": "t"})
        with pytest.raises(StorageError, match=told):
            expand("hf://datasets/org/name/", options=options)


@pytest.mark.parametrize("own", [{}, {"headers": {"X-Key": "v"}}])
@pytest.mark.parametrize("written", ["refs/convert/parquet", "refs%2Fconvert%2Fparquet"])
def test_a_revision_with_a_slash_is_listed_and_read(own, written):
    names = ["t/0 1.tar", "t/a%20b.tar", "t/c?#.tar"]
    files = {name: name.encode() + CONTENT for name in names}
    with hub(files=files, revision="refs%2Fconvert%2Fparquet") as (url, _, _):
        options = StorageOptions.of({"endpoint": url, "token": "hf_t0ken", **own})
        root = f"hf://datasets/org/name@{written}/t/"
        found = expand(root, options=options)
        assert [name.rpartition("/")[2] for name in found] == ["0 1.tar", "a%20b.tar", "c?#.tar"]
        for each, name in zip(found, names, strict=True):
            assert open_file(each, options=options).read(0, 8) == files[name][:8]


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("hf://datasets/o/n@refs/pr/3/b.tar", "datasets/o/n/resolve/refs%2Fpr%2F3/b.tar"),
        ("hf://datasets/o/n/a/b.tar", "datasets/o/n/resolve/main/a/b.tar"),
        ("hf://datasets/o/n@v2/b.tar", "datasets/o/n/resolve/v2/b.tar"),
    ],
)
def test_keys_are_the_hubs_resolve_paths(url, key):
    assert hub_key(url) == key


@pytest.mark.parametrize("url", ["hf://o/n/b.tar", "hf://datasets/o", "hf://spaces/o/n/b.tar"])
def test_other_forms_are_refused(url):
    with pytest.raises(StorageError, match="hf://datasets/ORG/NAME"):
        open_file(url)
