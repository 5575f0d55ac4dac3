"""Shards and streams that are written to an object store appear when they are whole.

The programs run in processes of their own: a process keeps its connection to a store, and the tests
of each file have another server.
"""

from __future__ import annotations

from tests.support.ranks import run_forked

_STREAMS = """
import os, sys
from shardwise.compat.webdataset.gopen import gopen
from shardwise.base.errors import MissingShardError

def is_there(url):
    try:
        gopen(url).close()
    except MissingShardError:
        return False
    return True

url, never = sys.argv[1:]
with gopen(url, "wb") as stream:
    stream.write(b"abc")
    assert not is_there(url)
with gopen(url) as stream:
    assert stream.read() == b"abc"
try:
    with gopen(never, "wb") as stream:
        stream.write(b"abc")
        raise RuntimeError
except RuntimeError:
    assert not is_there(never)
print("all of it", flush=True)
os._exit(0)
"""

_SHARDS = """
import os, sys
import shardwise as sw
from shardwise.compat.webdataset.writer import ShardWriter, TarWriter

pattern, never = sys.argv[1:]
with ShardWriter(pattern, maxcount=2, verbose=0) as sink:
    for n in range(4):
        sink.write({"__key__": str(n), "cls": n})
dataset = sw.tar([pattern % n for n in range(2)]).decode(cls=int)
assert [sample["cls"] for sample in dataset] == [0, 1, 2, 3]
try:
    with TarWriter(never) as sink:
        sink.write({"__key__": "a", "cls": 3})
        raise RuntimeError
except RuntimeError:
    pass
print("all of it", flush=True)
os._exit(0)
"""


def test_a_stream_to_a_store_is_an_object_when_it_is_closed(s3, tmp_path):
    urls = s3.url("written.bin"), s3.url("never.bin")
    assert "all of it" in run_forked(tmp_path, _STREAMS, *urls, env=s3.environment)


def test_shards_are_written_to_a_store_and_a_failed_one_is_not(s3, tmp_path):
    urls = s3.url("part-%03d.tar"), s3.url("never.tar")
    assert "all of it" in run_forked(tmp_path, _SHARDS, *urls, env=s3.environment)
    assert s3.request("GET", "never.tar").status == 404
