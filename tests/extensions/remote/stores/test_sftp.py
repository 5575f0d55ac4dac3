"""SFTP by fsspec, against OpenSSH's server; and file systems that do not answer."""

from __future__ import annotations

import getpass
import threading
import time

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import shardwise as sw
from shardwise.base.errors import StorageError
from shardwise.storage import StorageOptions, open_file
from tests.support.remote_shards import put_shards
from tests.support.sftp_server import sftp_server


@pytest.fixture(scope="module")
def sftp(tmp_path_factory):
    with sftp_server(tmp_path_factory.mktemp("sftp") / "files") as server:
        yield server


@pytest.fixture(autouse=True)
def user_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


def test_a_local_index_serves_the_same_file_by_sftp(sftp):
    urls = put_shards(sftp, "both", [10])
    # The server tells seconds of a time that the disk has in nanoseconds.
    assert len(sw.tar(sftp.folder / "both")) == 10
    assert len(sw.tar(urls, storage=sftp.config)) == 10


def test_a_password_in_a_url_is_refused():
    with pytest.raises(StorageError, match="holds a password") as caught:
        open_file("sftp://me:S3CRET@127.0.0.1/x").read(0, 1)
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"key_filename": None}, "no key and no password was given"),
        ({"key_filename": None, "password": "S3CRET"}, "login was refused"),
        ({"key_filename": "none"}, "FileNotFoundError.* settings given are key_filename"),
        ({"key_filename": "."}, "IsADirectoryError.* settings given are key_filename"),
        ({"key_filename": "garbage"}, "is no private key"),
        ({"host_key_policy": "reject"}, "host's key is not known"),
    ],
)
def test_a_login_that_can_not_succeed_is_told_at_once(sftp, tmp_path, monkeypatch, wrong, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage").write_text("no key")
    options = StorageOptions(config={**sftp.config, **wrong})
    with pytest.raises(StorageError, match=said) as caught:
        open_file(sftp.url("none.tar"), options=options).read(0, 1)
    assert "attempts" not in str(caught.value)
    assert "S3CRET" not in str(caught.value)


def test_a_manifest_beside_its_shards_keeps_no_user(sftp):
    root = sftp.url("written")
    pattern = f"{root}/{{shard:03d}}.tar"
    with sw.TarWriter(pattern, storage=sftp.config, max_samples=2, manifest=True) as writer:
        for number in range(4):
            writer.write({"__key__": f"{number:04d}", "cls": number})
    data = (sftp.folder / "written/manifest.swm").read_bytes()
    assert b"000.tar" in data
    assert f"{getpass.getuser()}@".encode() not in data  # a digest may hold an "@" by chance
    assert b"127.0.0.1" not in data
    ds = sw.tar(f"{root}/manifest.swm", storage=sftp.config)
    assert [ds[i]["cls"] for i in range(4)] == [b"0", b"1", b"2", b"3"]


def test_a_file_system_that_never_answers_leaves_a_bounded_number_of_threads():
    released = threading.Event()

    class Silent(MemoryFileSystem):
        protocol = "silent"
        cachable = False

        def info(self, path, **options):
            released.wait()
            return super().info(path)

    fsspec.register_implementation("silent", Silent, clobber=True)
    options = StorageOptions(attempt_timeout_s=0.02, request_timeout_s=120, hedge=False)

    def stuck():
        return sum(thread.name == "shardwise-blocking" for thread in threading.enumerate())

    failures, most = [], []

    def read(number):
        try:
            open_file(f"silent://d/{number}.tar", options=options).read(0, 1)
        except StorageError as error:
            failures.append(str(error))

    readers = [threading.Thread(target=read, args=(i,)) for i in range(16)]
    try:
        for reader in readers:
            reader.start()
        while any(reader.is_alive() for reader in readers):
            most.append(stuck())
            time.sleep(0.01)
        assert len(failures) == 16
        assert all("64 calls to silent:// have not returned" in said for said in failures)
        assert 32 < max(most) <= 64
    finally:
        released.set()
        for reader in readers:
            reader.join()
