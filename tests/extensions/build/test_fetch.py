"""`sw.fetch`: URLs of a faulty server become samples, or errors that are counted by reason."""

from __future__ import annotations

import pickle
import socket
import ssl
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from shardwise.extensions.build.fetch import FetchError
from tests.extensions.build.test_kills import shards_of
from tests.extensions.remote.stores.test_certificates import server as tls_server  # noqa: F401 - a fixture
from tests.support.faulty_web import LIMIT, body_of, faulty_web


@pytest.fixture
def server():
    with faulty_web() as web:
        yield web


@pytest.fixture
def closed_port():
    """A port of this machine that is bound, so nobody else's, and not listened on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def word_of(url: object, **options: object) -> str:
    options = {"retries": 0, "max_bytes": LIMIT, **options}
    with pytest.raises(FetchError) as caught:
        sw.fetch(**options)({"url": url})
    return caught.value.word


def build(directory: Path, urls: list[object], *, fetch: object, **options: object):
    options = {"num_workers": 0, "samples_per_shard": 10, "on_error": "record", **options}
    items = [{"__key__": f"{n:03d}", "url": url} for n, url in enumerate(urls)]
    return sw.build(items, directory / "{shard:02d}.tar", map=fetch, **options)


def bodies(directory: Path) -> dict[str, bytes]:
    return {s["__key__"]: s["jpg"] for s in sw.tar(f"{directory}/manifest.swm")}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bytes_are_the_servers_and_their_order_is_the_lists(server, tmp_path, num_workers):
    names = [f"good-{n}" for n in range(37)]
    urls = [f"{server.root}/{name}" for name in names]
    fetch = sw.fetch(concurrency=3)
    report = build(tmp_path / "a", urls, fetch=fetch, num_workers=num_workers)
    assert (report["out"], report["failed"], report["shards"]) == (37, {}, 4)
    assert list(bodies(tmp_path / "a").values()) == [body_of(name) for name in names]
    # A function that calls it fetches one at a time, for the same shards.
    build(tmp_path / "b", urls, fetch=fetch.__call__)
    assert shards_of(tmp_path / "a") == shards_of(tmp_path / "b")


def test_several_fetches_are_under_way_at_once(server, tmp_path):
    # The server answers none of four before all four have asked.
    urls = [f"{server.root}/together-{n}" for n in range(8)]
    report = build(tmp_path, urls, fetch=sw.fetch(concurrency=4, timeout_s=60, retries=0))
    assert (report["out"], report["failed"]) == (8, {})


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("404", "http 404"),
        ("503", "http 503"),
        ("204", "http 204"),
        ("304", "http 304"),
        ("large", "too large"),
        ("endless", "too large"),
        ("cut", "cut short"),
        ("zipped", "compressed"),
        ("garbage", "not a reply of http"),
        ("loop", "too many redirects"),
        ("hops-6", "too many redirects"),
        ("file", "not http"),
        ("ftp", "not http"),
        ("bad", "bad url"),
    ],
)
def test_a_reply_that_is_no_picture_has_a_word(server, name, word):
    assert word_of(f"{server.root}/{name}") == word


@pytest.mark.parametrize("name", ["silent", "drip"])
def test_a_time_limit_is_for_the_whole_reply(server, name):
    assert word_of(f"{server.root}/{name}", timeout_s=0.5) == "timeout"


@pytest.mark.parametrize(
    ("url", "word"),
    [
        (None, "no url"),
        (" ", "no url"),
        (7, "no url"),
        ("file:///etc/passwd", "not http"),
        ("ftp://127.0.0.1/a", "not http"),
        ("data:,x", "not http"),
        ("a.jpg", "not http"),
        ("http://", "bad url"),
        ("http://[", "bad url"),
        ("http://127.0.0.1:99999/", "bad url"),
        ("http://me:secret@127.0.0.1/", "bad url"),
        ("http://127.0.0.1\0/", "bad url"),
        ("http://127.0.0.1/\ud800", "bad url"),
        (f"http://{'x' * 70}.\u00fc/", "bad url"),
        ("http://nothing.invalid/", "no host"),
    ],
)
def test_a_url_that_can_not_be_fetched_has_a_word(url, word):
    assert word_of(url) == word


def test_a_closed_port_is_refused(closed_port):
    assert word_of(f"http://127.0.0.1:{closed_port}/") == "refused"


def test_five_redirects_are_followed_and_odd_urls_are_asked_for_escaped(server):
    fetch = sw.fetch(into="png")
    assert fetch({"url": f"{server.root}/hops-5", "n": 1}) == {
        "url": f"{server.root}/hops-5",
        "n": 1,
        "png": body_of("good-end"),
    }
    fetch({"url": f" {server.root}/a b/\u00fc%20/good?q=\u00e4 b#part ".encode()})
    assert server.asked["/a%20b/%C3%BC%20/good?q=%C3%A4%20b"] == 1


def test_an_error_that_may_pass_is_tried_again_and_another_is_not(server):
    assert sw.fetch(retries=1)({"url": f"{server.root}/flaky"})["jpg"] == body_of("flaky")
    assert word_of(f"{server.root}/500", retries=1) == "http 500"
    assert word_of(f"{server.root}/404", retries=1) == "http 404"
    assert (server.asked["/flaky"], server.asked["/500"], server.asked["/404"]) == (2, 2, 1)


def test_a_certificate_that_nobody_signed_is_no_connection(tls_server):  # noqa: F811
    assert word_of(tls_server[0]) == "certificate"


def test_a_redirect_from_https_to_http_is_not_followed(server, tls_server, monkeypatch):  # noqa: F811
    from shardwise.extensions.build import http_get

    context = ssl.create_default_context(cafile=tls_server[1])
    monkeypatch.setattr(http_get, "_tls_context", lambda: context)
    url = f"{tls_server[0]}/to/{server.root}/good"
    assert word_of(url) == "redirect from https to http"


def test_the_environments_proxy_is_not_used(server, monkeypatch, closed_port):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port}")
    assert sw.fetch()({"url": f"{server.root}/good"})["jpg"] == body_of("good")


def test_a_build_counts_urls_by_reason_and_takes_them_up_again(server, tmp_path, closed_port):
    names = ["good-0", "404", "silent", "good-1", "file", "large", "cut", "503", "404-2", "good-2"]
    urls = [f"{server.root}/{name}" for name in names]
    urls += [f"http://127.0.0.1:{closed_port}/", None]
    fetch = sw.fetch(timeout_s=1, retries=0, max_bytes=LIMIT, concurrency=4)
    report = build(tmp_path, urls, fetch=fetch)
    assert report["out"] == 3
    assert report["failed"] == {
        "cut short": 1,
        "http 404": 2,
        "http 503": 1,
        "no url": 1,
        "not http": 1,
        "refused": 1,
        "timeout": 1,
        "too large": 1,
    }
    rows = sw.parquet(report["errors"])
    assert [row["key"] for row in rows] == [f"{n:03d}" for n in (1, 2, 4, 5, 6, 7, 8, 10, 11)]
    assert f"http 404: {server.root}/404" in rows[0]["reason"]

    server.is_repaired = True
    # A retry may have other limits.
    again = sw.fetch(timeout_s=60, max_bytes=LIMIT, retries=0)
    report = build(tmp_path, urls, fetch=again, retry_errors=True)
    assert report["failed"] == {"no url": 1, "refused": 1}
    expected = {f"{n:03d}": body_of(name) for n, name in enumerate(names)}
    assert bodies(tmp_path) == expected


def test_errors_of_the_source_and_the_filter_stay_with_their_inputs(server, tmp_path):
    def odd(sample):
        number = int(sample["__key__"])
        if number == 4:
            raise OSError("no answer")
        return number % 2 == 1 or number == 4

    urls = [f"{server.root}/good-{n}" for n in range(10)]
    urls[7] = f"{server.root}/404"
    report = build(tmp_path, urls, fetch=sw.fetch(concurrency=2), filter=odd)
    assert report["failed"] == {"OSError": 1, "http 404": 1}
    assert (report["in"], report["out"], report["filtered"]) == (10, 4, 4)
    assert bodies(tmp_path) == {f"{n:03d}": body_of(f"good-{n}") for n in (1, 3, 5, 9)}
    assert [row["key"] for row in sw.parquet(report["errors"])] == ["004", "007"]


def test_without_recording_the_first_url_ends_the_build(server, tmp_path):
    urls = [f"{server.root}/good", f"{server.root}/404?token=secret"]
    with pytest.raises(sw.DataError, match="http 404") as caught:
        build(tmp_path, urls, fetch=sw.fetch(), on_error="raise")
    assert (caught.value.key, caught.value.index) == ("001", 1)
    assert "secret" not in str(caught.value)


def test_a_build_that_fails_waits_for_no_more_tries(server, tmp_path):
    urls = [f"{server.root}/404", f"{server.root}/503"]
    before = set(threading.enumerate())
    with pytest.raises(sw.DataError, match="http 404"):
        build(tmp_path, urls, fetch=sw.fetch(retries=10**6), on_error="raise")
    left = set(threading.enumerate()) - before
    assert not [t for t in left if t.name.startswith("shardwise-fetch")]


def test_items_that_are_no_samples_are_told_how(tmp_path):
    with pytest.raises(TypeError, match="not a str"):
        sw.fetch()("http://127.0.0.1/")
    report = sw.build(
        ["http://127.0.0.1/"], tmp_path / "{shard}.tar", map=sw.fetch(), on_error="record",
        num_workers=0,
    )  # fmt: skip
    assert report["failed"] == {"TypeError": 1}


def test_it_can_be_pickled_and_so_can_its_errors():
    fetch = sw.fetch("link", into="png", retries=0)
    assert pickle.loads(pickle.dumps(fetch)) == fetch
    with pytest.raises(FetchError) as caught:
        fetch({"link": "file:///x"})
    assert pickle.loads(pickle.dumps(caught.value)).word == "not http"


def test_the_number_of_threads_is_not_in_the_recipe(server, tmp_path):
    urls = [f"{server.root}/good-{n}" for n in range(3)]
    build(tmp_path, urls, fetch=sw.fetch(concurrency=1))
    build(tmp_path, urls, fetch=sw.fetch(concurrency=9))
    with pytest.raises(sw.StateError):
        build(tmp_path, urls, fetch=sw.fetch(max_bytes=5))


def test_the_rows_of_a_table_keep_their_other_columns(server, tmp_path):
    links = [f"{server.root}/good-0", f"{server.root}/404", None]
    pq.write_table(pa.table({"url": links, "caption": ["a", "b", "c"]}), tmp_path / "list.parquet")
    report = sw.build(
        sw.parquet(f"{tmp_path}/list.parquet"),
        tmp_path / "out" / "{shard}.tar",
        map=sw.fetch("url", retries=0),
        on_error="record",
        num_workers=2,
    )
    assert report["failed"] == {"http 404": 1, "no url": 1}
    (sample,) = sw.tar(report["manifest"]).decode(url=str, caption=str)
    assert (sample["url"], sample["caption"]) == (links[0], "a")
    assert sample["jpg"] == body_of("good-0")


@pytest.mark.parametrize(
    "options",
    [
        {"field": ""}, {"into": "__key__"}, {"timeout_s": 0}, {"timeout_s": float("nan")},
        {"timeout_s": float("inf")}, {"retries": -1}, {"max_bytes": 0}, {"concurrency": 0},
        {"concurrency": 5000},
    ],
)  # fmt: skip
def test_an_argument_out_of_range_is_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        sw.fetch(**options)
