"""Streams for all URLs: files, programs, web servers, stores."""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import os

import pytest

from shardwise.base.errors import MissingShardError
from shardwise.compat.webdataset import cache
from shardwise.compat.webdataset.gopen import (
    Pipe,
    gopen,
    gopen_schemes,
    reader,
    rewrite_url,
)
from tests.support.ranks import run_forked
from tests.support.servers import nginx
from tests.support.web import WebServer, running


@pytest.fixture(scope="module")
def web(no_orphans, tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    (folder / "big.bin").write_bytes(bytes(range(256)) * 20_000)
    (folder / "empty.bin").write_bytes(b"")
    with nginx(folder) as server:
        yield server


# Files.


@pytest.mark.parametrize("name", ["with#hash", "with?mark", "with space", "a:b", "100%25"])
def test_a_local_name_is_taken_as_it_is(tmp_path, name):
    path = str(tmp_path / name)
    with gopen(path, "wb") as stream:
        stream.write(b"abc")
    assert os.listdir(tmp_path) == [name]
    with reader(path) as stream:
        assert stream.read() == b"abc"
    (opened,) = cache.StreamingOpen()([path])
    with opened["stream"] as stream:
        assert (opened["local_path"], stream.read()) == (path, b"abc")


def test_a_relative_name_with_a_colon_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "part:1.tar").write_bytes(b"abc")
    with gopen("part:1.tar") as stream:
        assert stream.read() == b"abc"


def test_file_urls_are_unquoted(tmp_path):
    (tmp_path / "a b").write_bytes(b"abc")
    with gopen(f"file://{tmp_path}/a%20b") as stream:
        assert stream.read() == b"abc"


def test_other_modes_are_refused():
    with pytest.raises(ValueError, match="'r'"):
        gopen("a", "r")


# Programs.


def test_a_pipe_is_read_to_its_end():
    with gopen("pipe:printf abc; printf def") as stream:
        assert stream.read(2) == b"ab"
        assert stream.read() == b"cdef"
        assert stream.read() == b""


@pytest.mark.parametrize("amount", [3, 100, -1, None])
def test_a_program_that_fails_is_an_error_at_the_end_of_its_output(amount):
    # In WebDataset this depends on who is faster.
    for _ in range(10):
        with pytest.raises(OSError, match=r"printf abc; exit 3.*status 3"):
            with gopen("pipe:printf abc; exit 3") as stream:
                while stream.read(amount):
                    pass


def test_a_program_that_fails_before_its_output_is_an_error():
    with pytest.raises(OSError, match="status 7"):
        gopen("pipe:exit 7").read(512)


def test_statuses_that_are_no_failure_are_accepted():
    with Pipe("exit 7", mode="r", shell=True, ignore_status=[7]) as stream:
        assert stream.read() == b""
    with Pipe("exit 7", mode="r", shell=True) as stream:
        stream.ignore_errors = True
        assert stream.read() == b""


def test_a_reader_that_stops_early_gets_no_error_and_leaves_no_program():
    stream = gopen("pipe:printf abc; exec sleep 1000")
    assert stream.read(1) == b"a"
    # WebDataset waits for its end, up to two hours: pytest's timeout would end that.
    stream.close()
    assert stream.proc.returncode not in (None, 0)
    stream.close()


def test_a_stream_that_nobody_closes_leaves_no_program():
    stream = gopen("pipe:exec sleep 1000")
    process = stream.proc
    del stream
    assert process.returncode is not None


def test_a_program_that_never_ends_after_its_output_is_given_up():
    stream = Pipe("exec 1>&-; exec sleep 1000", mode="r", shell=True, timeout=0.1)
    with pytest.raises(OSError, match=r"did not end within 0\.1 s"):
        stream.read()
    assert stream.proc.returncode is not None


def test_a_program_that_fails_at_the_end_of_its_input_is_an_error():
    stream = gopen("pipe:cat > /dev/null; exit 3", "wb")
    stream.write(b"abc")
    with pytest.raises(OSError, match="status 3"):
        stream.close()


def test_a_program_that_does_not_read_is_named_and_not_only_its_broken_pipe():
    with pytest.raises(OSError, match="status 4"):
        with gopen("pipe:exit 4", "wb") as stream:
            for _ in range(10_000):
                stream.write(bytes(10_000))


# Switches.


def test_the_first_rule_that_fits_rewrites_a_url(monkeypatch, tmp_path):
    (tmp_path / "x.tar").write_bytes(b"abc")
    monkeypatch.setenv("GOPEN_REWRITE", f"gs://no=x;gs://bucket={tmp_path};.*=never")
    with gopen("gs://bucket/x.tar") as stream:
        assert stream.read() == b"abc"
    monkeypatch.setenv("GOPEN_REWRITE", "a|b=c")
    # The pattern as a whole must fit at the beginning.
    assert rewrite_url("xb") == "xb"
    monkeypatch.setenv("GOPEN_REWRITE", "nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        rewrite_url("a")


def test_users_add_schemes_with_and_without_slashes(monkeypatch):
    def opened(url, mode, bufsize, **options):
        return url, mode, options

    monkeypatch.setitem(gopen_schemes, "mine", opened)
    assert gopen("mine:abc", speed=2) == ("mine:abc", "rb", {"speed": 2})
    assert gopen("mine://abc", "wb") == ("mine://abc", "wb", {})
    with pytest.raises(ValueError, match=r"no gopen handler.*mine"):
        gopen("unknown://abc")
    monkeypatch.setitem(gopen_schemes, "__default__", opened)
    assert gopen("unknown://abc")[0] == "unknown://abc"


def test_some_schemes_go_by_ais_where_the_environment_says_so(monkeypatch, tmp_path):
    program = tmp_path / "ais"
    program.write_text("#!/bin/sh\nprintf '%s ' \"$@\"\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("USE_AIS_FOR", "gs:s3")
    # No shell: what stands in a URL is never run.
    with gopen("s3://bucket/$(touch owned);a") as stream:
        assert stream.read() == b"get s3://bucket/$(touch owned);a - "


def test_a_program_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"'curl'.*not installed"):
        gopen("sftp://host/a")


def test_what_is_opened_is_shown_if_asked_for(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    gopen(tmp_path / "a", "wb").close()
    assert str(tmp_path / "a") in capsys.readouterr().err
    monkeypatch.setenv("GOPEN_VERBOSE", "yes")
    with pytest.raises(ValueError, match="GOPEN_VERBOSE='yes'"):
        gopen(tmp_path / "a")


# Servers.


def test_a_web_server_is_read_without_a_program(web, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with gopen(f"{web.url}/big.bin") as stream:
        assert stream.read(3) == b"\0\1\2"
        rest = stream.read()
    assert len(rest) == 256 * 20_000 - 3
    assert rest[-1] == 255
    with gopen(f"{web.url}/empty.bin") as stream:
        assert stream.read() == b""


def test_a_remote_stream_seeks(web):
    with gopen(f"{web.url}/big.bin") as stream:
        assert stream.seek(-2, os.SEEK_END) == 256 * 20_000 - 2
        assert stream.read() == b"\xfe\xff"
        stream.seek(257)
        assert stream.read(1) == b"\1"


def test_a_missing_file_is_an_os_error_that_names_it(web):
    with pytest.raises(MissingShardError, match=r"missing\.tar") as caught:
        gopen(f"{web.url}/missing.tar")
    assert isinstance(caught.value, OSError)


class PlainServer(http.server.SimpleHTTPRequestHandler):
    """As simple as servers get: whole files only; no HEAD where the name says so."""

    def do_HEAD(self):
        if "signed" in self.path:
            self.send_error(403)
        else:
            super().do_HEAD()

    def copyfile(self, source, outputfile):
        if "cut" in self.path:
            outputfile.write(source.read(1000))
        else:
            super().copyfile(source, outputfile)

    def log_message(self, *words):
        pass


@pytest.fixture
def plain(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 8000)
    (tmp_path / "signed.bin").write_bytes(b"abc")
    (tmp_path / "cut.bin").write_bytes(bytes(5000))
    handler = functools.partial(PlainServer, directory=str(tmp_path))
    server = WebServer(("127.0.0.1", 0), handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}"


def test_the_simplest_web_server_will_do_without_a_program(plain, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with gopen(f"{plain}/a.bin") as stream:
        assert stream.read() == bytes(range(256)) * 8000
    with gopen(f"{plain}/signed.bin?signature=secret") as stream:
        assert stream.read() == b"abc"
    with pytest.raises(MissingShardError, match=r"missing\.bin"):
        gopen(f"{plain}/missing.bin")
    with pytest.raises(OSError, match="403") as caught:
        gopen(f"{plain}/signed-and-missing.bin?signature=secret")
    assert "secret" not in str(caught.value)


def test_a_reply_of_the_simplest_web_server_that_breaks_off_is_an_error(plain):
    with gopen(f"{plain}/cut.bin") as stream, pytest.raises(OSError, match="broke off") as caught:
        stream.read()
    assert "cut.bin" in str(caught.value)
    with gopen(f"{plain}/a.bin") as stream:
        # What is left early is no error.
        assert len(stream.read(10)) == 10


def read_length(url, queue):
    try:
        with gopen(url) as stream:
            queue.put(len(stream.read()))
    except OSError as error:
        queue.put(str(error))


def test_a_forked_worker_reads_what_its_parent_has_read_before(web):
    with gopen(f"{web.url}/big.bin") as stream:
        stream.read(1)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    for name, wanted in (("big.bin", 256 * 20_000), ("missing.tar", "missing.tar")):
        worker = context.Process(target=read_length, args=(f"{web.url}/{name}", queue))
        worker.start()
        got = queue.get()
        worker.join()
        assert got == wanted or wanted in str(got)


def test_standard_input_and_output_are_a_dash(tmp_path):
    code = (
        "import os; from shardwise.compat.webdataset.gopen import gopen;"
        "read, write = os.pipe(); os.write(write, b'abc'); os.close(write); os.dup2(read, 0);"
        "gopen('-', 'wb').write(gopen('-').read().upper())"
    )
    assert run_forked(tmp_path, code) == "ABC"
