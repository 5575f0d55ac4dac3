"""Remote files against real servers: exact bytes, one version, clear errors, no hang."""

from __future__ import annotations

import os
import pickle
import random
import socket
import time
from functools import partial

import pytest

from shardwise.base.errors import (
    DataError,
    MissingExtraError,
    MissingShardError,
    StaleIndexError,
    StorageError,
)
from shardwise.extensions.remote import remote_file
from shardwise.storage import File, FilePool, StorageOptions, open_file, read_whole
from shardwise.storage.byte_ranges import WHOLE, ByteRange
from shardwise.storage.protocol import ReadRequest
from tests.support.fault_proxy import FaultProxy
from tests.support.io_counts import counted_io
from tests.support.python_code import printed_by
from tests.support.servers import nginx
from tests.support.web import reply, serving

CONTENT = random.Random(5).randbytes(3_000_000)


def options_of(server, **given):
    return StorageOptions(config=server.config, **given)


@pytest.fixture(scope="module")
def url(s3):
    return s3.put("a/f.tar", CONTENT)


def test_any_range_has_its_bytes(s3, url):
    file = open_file(url, options=options_of(s3))
    assert isinstance(file, File)
    assert file.is_remote
    rng = random.Random(0)
    for _ in range(20):
        start = rng.randrange(len(CONTENT))
        length = min(rng.choice([0, 1, 700, 200_000]), len(CONTENT) - start)
        assert file.read(start, length) == CONTENT[start : start + length]
    whole = bytearray(len(CONTENT))
    file.read_into(0, memoryview(whole))
    assert whole == CONTENT


def test_stat_says_length_time_and_etag(s3, url):
    stat = open_file(url, options=options_of(s3)).stat()
    assert stat.num_bytes == len(CONTENT)
    assert abs(stat.mtime_ns / 1e9 - time.time()) < 86_400
    assert stat.etag.strip('"')


def test_random_access_costs_one_range_and_no_more_bytes(s3):
    url = s3.put("random.tar", CONTENT)
    file = open_file(url, options=options_of(s3, hedge=False))
    rng = random.Random(2)
    for _ in range(30):
        start = rng.randrange(len(CONTENT) - 30_000)
        assert file.read(start, 30_000) == CONTENT[start : start + 30_000]
    seen = [r for r in s3.requests() if r["path"].endswith("random.tar") and r["method"] != "PUT"]
    assert [r["method"] for r in seen] == ["GET"] * 30
    assert {r["num_bytes"] for r in seen} == {30_000}


def test_neighbours_that_are_announced_one_after_the_other_share_a_request(s3, monkeypatch):
    monkeypatch.setattr(remote_file, "_BURST_S", 60.0)  # or until they are read
    file = open_file(s3.put("burst.tar", CONTENT), options=options_of(s3, hedge=False))
    file.pin(file.stat())
    for start in (0, 100_000):
        asked = ReadRequest(file, [ByteRange(start, start + 100_000, 0)])
        file.announce(start, [asked])
    assert file.read(0, 200_000) == CONTENT[:200_000]
    for start in (0, 100_000):
        file.withdraw(start)
    seen = [r for r in s3.requests() if r["path"].endswith("burst.tar") and r["method"] == "GET"]
    assert [r["num_bytes"] for r in seen] == [200_000]


def test_a_range_as_long_as_the_mark_of_a_whole_file_is_fetched_as_it_is(s3):
    file = open_file(s3.put("mark.tar", CONTENT), options=options_of(s3, hedge=False))
    file.pin(file.stat())
    file.announce("mark", [ReadRequest(file, [WHOLE])])
    assert file.read(0, WHOLE.stop) == CONTENT[: WHOLE.stop]
    file.withdraw("mark")
    seen = [r for r in s3.requests() if r["path"].endswith("mark.tar") and r["method"] == "GET"]
    assert [r["num_bytes"] for r in seen] == [WHOLE.stop]


@pytest.mark.parametrize("offset", [0, 2_999_990, 3_000_000, 5_000_000])
def test_a_file_that_ends_before_the_range_says_where(s3, url, offset):
    file = open_file(url, options=options_of(s3))
    with pytest.raises(DataError, match="ended at byte 3000000") as caught:
        file.read(offset, 3_000_001)
    assert caught.value.url == url
    assert type(caught.value) is DataError


def test_an_empty_object_is_a_file_without_bytes(s3):
    file = open_file(s3.put("empty", b""), options=options_of(s3))
    assert file.stat().num_bytes == 0
    assert file.read(0, 0) == b""
    with pytest.raises(DataError, match="ended at byte 0"):
        file.read(0, 1)


@pytest.mark.parametrize("redirects", ["any", "none"])
def test_an_empty_file_on_nginx_is_one_without_bytes(tmp_path, redirects):
    # It answers a range of it with HTTP 200, and so do servers that ignore ranges.
    (tmp_path / "empty").touch()
    options = StorageOptions(redirects=redirects)
    with nginx(tmp_path) as server:
        url = f"{server.url}/empty"
        assert read_whole(url, options=options) == b""
        file = open_file(url, options=options)
        assert file.stat().num_bytes == 0
        with pytest.raises(DataError, match="ended at byte 0"):
            file.read(0, 1)


def test_a_file_is_read_whole_in_any_place(s3, tmp_path):
    (tmp_path / "local").touch()
    assert read_whole(str(tmp_path / "local")) == b""
    for data in (b"", b"abc"):
        url = s3.put("whole", data)
        assert read_whole(url, options=options_of(s3)) == data


@pytest.mark.parametrize("use", [lambda f: f.read(0, 1), lambda f: f.stat(), lambda f: f.open()])
def test_what_is_not_there_is_missing_after_one_request(s3, use):
    before = len(s3.requests())
    with pytest.raises(MissingShardError, match="404") as caught:
        use(open_file(s3.url("no/such.tar"), options=options_of(s3, hedge=False)))
    assert caught.value.url == s3.url("no/such.tar")
    assert [seen["status"] for seen in s3.requests()[before:]] == [404]


def test_a_wrong_key_is_refused_after_one_request_and_not_shown(s3, url):
    config = {**s3.config, "aws_secret_access_key": "wrong-s3cr3t"}
    before = len(s3.requests())
    with pytest.raises(StorageError, match="403") as caught:
        open_file(url, options=StorageOptions(config=config, hedge=False)).read(0, 1)
    assert url in str(caught.value)
    assert "wrong-s3cr3t" not in repr(caught.value)
    assert s3.access_key not in repr(caught.value)
    assert [seen["status"] for seen in s3.requests()[before:]] == [403]


def test_an_endpoint_that_hangs_is_given_up_at_its_deadline():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        config = {
            "endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
        }
        options = StorageOptions(config=config, attempt_timeout_s=0.4, request_timeout_s=1.5)
        with pytest.raises(StorageError, match=r"no answer in .*attempts") as caught:
            open_file("s3://bucket/x.tar", options=options).read(0, 1)
    assert "s3://bucket/x.tar" in str(caught.value)


@pytest.mark.parametrize("redirects", ["any", "none"])
def test_a_refused_connection_says_so_and_is_tried_again(redirects):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = StorageOptions(max_attempts=2, redirects=redirects)
    with pytest.raises(StorageError, match=r"(?i)connection ?refused.* \(2 attempts"):
        open_file(f"http://127.0.0.1:{port}/x.tar", options=options).read(0, 1)


@pytest.mark.parametrize("hide_etag", [False, pytest.param(True, marks=pytest.mark.long)])
def test_cut_stalled_reset_and_failing_replies_are_all_made_good(s3, hide_etag):
    # So long that each range is a request of its own.
    content = random.Random(6).randbytes(30_000_000)
    url = s3.put("wide.tar", content)
    faults = {"cut_share": 0.1, "reset_share": 0.1, "error_share": 0.1, "stall_share": 0.05}
    with FaultProxy(s3.endpoint, seed=3, hide_etag=hide_etag, **faults) as proxy:
        options = options_of(s3.behind(proxy.url), attempt_timeout_s=2.0)
        file = open_file(url, options=options)
        rng = random.Random(4)
        with counted_io() as asked:
            for _ in range(6):
                offsets = [rng.randrange(len(content) - 20_000) for _ in range(32)]
                buffer = bytearray(32 * 20_000)
                ends = [20_000 * (i + 1) for i in range(32)]
                file.read_spans(offsets, ends, memoryview(buffer), 0)
                assert buffer == b"".join(content[o : o + 20_000] for o in offsets)
        counts = proxy.counts()
        assert counts["cut"]
        assert counts["reset"]
        assert counts["error"]
        assert asked["retries"]


def test_an_object_that_is_replaced_while_it_is_read_raises(s3):
    url = s3.put("replaced.tar", CONTENT)
    file = open_file(url, options=options_of(s3))
    assert file.read(0, 10) == CONTENT[:10]
    s3.put("replaced.tar", CONTENT[::-1])
    with pytest.raises(StaleIndexError, match="replaced") as caught:
        file.read(0, 10)
    assert caught.value.url == url
    # A copy keeps the version, a new one takes what is there.
    with pytest.raises(StaleIndexError):
        pickle.loads(pickle.dumps(file)).read(0, 10)
    assert open_file(url, options=options_of(s3)).read(0, 10) == CONTENT[::-1][:10]


def test_without_etags_another_length_or_time_is_another_version(tmp_path):
    (tmp_path / "x.tar").write_bytes(CONTENT[:1000])
    os.utime(tmp_path / "x.tar", (1_000_000_000, 1_000_000_000))
    with nginx(tmp_path) as server, FaultProxy(server.url) as proxy:
        with FaultProxy(server.url, hide_etag=True) as blind:
            timed = open_file(f"{proxy.url}/x.tar")
            lengthy = open_file(f"{blind.url}/x.tar")
            assert timed.read(0, 5) == lengthy.read(0, 5) == CONTENT[:5]
            assert timed.stat().mtime_ns == 1_000_000_000 * 10**9
            assert lengthy.stat().etag == ""
            (tmp_path / "x.tar").write_bytes(CONTENT[:1001])
            for file in (timed, lengthy):
                with pytest.raises(StaleIndexError, match="replaced"):
                    file.read(0, 5)


def test_a_pool_pins_a_version_however_often_it_opens_the_file(s3):
    url = s3.put("pinned.tar", CONTENT)
    other = s3.put("other.tar", b"x")
    pool = FilePool(options=options_of(s3))
    pool.limit = 1
    pool.pin(url, pool.get(url).stat())
    s3.put("pinned.tar", CONTENT[::-1])
    for again in (pool, pickle.loads(pickle.dumps(pool))):
        again.get(other)
        with pytest.raises(StaleIndexError):
            again.get(url).read(0, 10)


def test_a_forked_child_of_a_reader_is_told_what_to_do_at_once(s3, url):
    printed = printed_by(
        f"""
        import os
        from shardwise.storage import open_file
        file = open_file({url!r})
        assert file.read(0, 4)
        pid = os.fork()
        if pid == 0:
            for again in (file, open_file({url!r})):
                try:
                    again.read(0, 4)
                except OSError as error:
                    assert "spawn" in str(error), error
                else:
                    os._exit(3)
            os._exit(7)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert file.read(4, 4)
        print(code)
        """,
        env=s3.environment,
    )
    assert printed == "7"


def test_a_forked_child_of_one_that_only_opened_the_file_reads(s3, url):
    printed = printed_by(
        f"""
        import os
        from shardwise.storage import open_file
        file = open_file({url!r})
        pid = os.fork()
        if pid == 0:
            os._exit(len(file.read(0, 7)))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        env=s3.environment,
    )
    assert printed == "7"


def test_the_interpreter_ends_with_requests_in_flight(s3, url):
    with FaultProxy(s3.endpoint, stall_share=1.0, stall_head=True) as proxy:
        environment = {**s3.environment, "AWS_ENDPOINT": proxy.url}
        printed = printed_by(
            f"""
            import threading, time
            from shardwise.storage import IO_COUNTS, open_file
            file = open_file({url!r})
            threading.Thread(target=file.read, args=(0, 10), daemon=True).start()
            while not IO_COUNTS.snapshot()["requests"]:
                time.sleep(0.001)
            print("ends")
            """,
            env=environment,
        )
    assert printed == "ends"


def test_a_web_server_is_read_with_the_token_that_was_given(tmp_path):
    (tmp_path / "a b+c.tar").write_bytes(CONTENT)
    with (
        nginx(tmp_path, bearer="t0ken") as server,
        FaultProxy(server.url, error_share=0.1) as proxy,
    ):
        url = f"{proxy.url}/a%20b+c.tar"
        file = open_file(url, options=StorageOptions.of({"token": "t0ken"}))
        for start in range(0, len(CONTENT), 100_000):
            assert file.read(start, 100_000) == CONTENT[start : start + 100_000]
        headers = {"headers": {"Authorization": "Bearer t0ken"}}
        signed = f"{url}?signature=S3CRET"
        assert open_file(signed, options=StorageOptions.of(headers)).read(1, 4) == CONTENT[1:5]
        with pytest.raises(StorageError, match="401") as refused:
            open_file(signed).read(0, 1)
        missing = open_file(signed.replace("a%20b", "no"), options=StorageOptions.of(headers))
        with pytest.raises(MissingShardError) as gone:
            missing.read(0, 1)
        with pytest.raises(DataError) as ended:
            open_file(signed, options=StorageOptions.of(headers)).read(len(CONTENT), 1)
        for error in (refused, gone, ended):
            assert proxy.url in str(error.value)
            assert "S3CRET" not in repr(error.value) + str(error.value)


def test_credentials_in_a_url_are_refused_without_showing_them():
    with pytest.raises(StorageError, match="holds credentials") as caught:
        open_file("https://user:pa55@host/x.tar")
    assert "pa55" not in str(caught.value)


def test_settings_that_are_not_known_are_named():
    with pytest.raises(StorageError, match="bogus"):
        open_file("s3://b/x", options=StorageOptions.of({"bogus": "v4lue"})).read(0, 1)
    with pytest.raises(StorageError, match=r"region.*headers"):
        open_file("http://h/x", options=StorageOptions.of({"region": "x"})).read(0, 1)


@pytest.mark.parametrize("weak", [False, True])
def test_a_server_that_ignores_if_match_cannot_mix_versions(weak):
    etags = ['"one"']

    def answer(handler):
        etag = ("W/" if weak else "") + etags[-1]
        reply(handler, 206, bytes(5), Content_Range="bytes 0-4/1000", ETag=etag)

    with serving(answer) as (root, asked):
        file = open_file(f"{root}/x.tar", options=StorageOptions(hedge=False))
        assert file.read(0, 5) == bytes(5)
        assert file.read(0, 5) == bytes(5)
        # A weak one never matches, so it is not asked for.
        matches = [headers.get("if-match") for _, _, headers in asked]
        assert matches == [None, None if weak else '"one"']
        etags.append('"two"')
        with pytest.raises(StaleIndexError, match="two"):
            file.read(0, 5)


def test_a_server_that_ignores_ranges_is_named_as_such():
    with serving(lambda handler: reply(handler, 200, bytes(1000))) as (root, _):
        with pytest.raises(StorageError, match=r"ignores the Range header.*nginx"):
            open_file(f"{root}/x.tar").read(10, 5)


def test_a_reply_that_is_shorter_than_asked_is_never_taken():
    # It says so in a consistent way.
    answer = partial(reply, status=206, body=bytes(5), Content_Range="bytes 0-4/1000")
    with serving(answer) as (root, _):
        options = StorageOptions(max_attempts=2)
        with pytest.raises(StorageError, match=r"0\.\.10, got 0\.\.5"):
            open_file(f"{root}/x.tar", options=options).read(0, 10)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"shardwise\[remote\]"):
        open_file("s3://bucket/x.tar")


@pytest.mark.parametrize("url", ["pipe:cat x.tar", "bogus://h/x.tar", "simplecache://x/y.tar"])
def test_an_unknown_scheme_names_the_supported_ones(url):
    with pytest.raises(StorageError, match="is not supported") as caught:
        open_file(url)
    assert url in str(caught.value)
