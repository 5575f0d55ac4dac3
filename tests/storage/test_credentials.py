"""Settings that may be secret never show and never pickle, except to a child of this process."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import subprocess
import sys

import pytest

from shardwise.base.errors import StorageError
from shardwise.storage.credentials import Credentials, export_credentials
from shardwise.storage.options import StorageOptions
from tests.support.python_code import run_code

SECRET = "s3cr3t/key+value"
VALUES = {"aws_access_key_id": "AKID", "aws_secret_access_key": SECRET}


def test_the_values_are_there_and_are_not_shown():
    credentials = Credentials(VALUES)
    assert credentials.values() == VALUES
    assert SECRET not in repr(credentials) + str(credentials) + repr(StorageOptions(config=VALUES))
    assert "aws_secret_access_key" in repr(credentials)


def test_a_pickle_holds_no_secret_and_comes_back_in_the_same_process():
    credentials = Credentials(VALUES)
    data = pickle.dumps(StorageOptions(config=credentials))
    assert SECRET.encode() not in data
    back = pickle.loads(data)
    assert back.settings() == VALUES
    assert back.config == credentials
    assert hash(back) == hash(StorageOptions(config=credentials))


def test_in_another_process_the_first_use_says_to_give_them_again():
    data = pickle.dumps(StorageOptions(config=Credentials(VALUES)))
    code = f"""
import pickle
options = pickle.loads({data!r})
print(repr(options.config))
try:
    options.settings()
except OSError as error:
    print(error)
"""
    done = run_code(code)
    assert "aws_secret_access_key=..." in done.stdout
    assert "give them again" in done.stdout
    assert SECRET not in done.stdout + done.stderr


def test_a_copy_that_came_without_values_has_them_once_they_are_lent():
    code = """
import pickle, sys
from shardwise.storage.credentials import import_credentials
given, data = pickle.load(sys.stdin.buffer)
before = pickle.loads(data)
kept = import_credentials(given)
after = pickle.loads(data)
assert after.values()["aws_access_key_id"] == "AKID"
try:
    before.values()
except OSError:
    print("ok")
"""
    credentials = Credentials(VALUES)
    mine = [each for each in export_credentials() if each[2] == VALUES]
    assert mine
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps((mine, pickle.dumps(credentials))),
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == b"ok"


def _settings(options, queue):
    queue.put(options.settings())


def test_a_child_that_multiprocessing_spawns_has_the_values():
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    options = StorageOptions(config=VALUES)
    child = context.Process(target=_settings, args=(options, queue))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert queue.get() == VALUES
    queue.close()


def test_nothing_is_kept_of_credentials_that_nobody_uses():
    credentials = Credentials({"token": "only here"})
    data = pickle.dumps(credentials)
    assert any(each[2] == {"token": "only here"} for each in export_credentials())
    del credentials
    gc.collect()
    assert not any(each[2] == {"token": "only here"} for each in export_credentials())
    with pytest.raises(StorageError, match="give them again"):
        pickle.loads(data).values()


def test_no_settings_are_equal_everywhere():
    assert Credentials({}) == pickle.loads(pickle.dumps(Credentials({})))
    assert StorageOptions() == StorageOptions()
    assert Credentials(VALUES) != Credentials(VALUES)
