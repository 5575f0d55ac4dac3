"""Options of storage: what users may write, and what is refused."""

from __future__ import annotations

import pickle
from functools import partial

import pytest

from shardwise.storage.options import CacheSettings, StorageOptions


def test_names_that_are_no_options_are_the_settings_of_the_store():
    options = StorageOptions.of({"endpoint": "http://h", "max_attempts": 3})
    assert options.settings() == {"endpoint": "http://h"}
    assert options.max_attempts == 3


def test_options_are_taken_as_they_are():
    options = StorageOptions(max_requests=5)
    assert StorageOptions.of(options) is options
    assert StorageOptions.of(None) == StorageOptions()
    assert StorageOptions.of({"config": {"token": "t"}}).settings() == {"token": "t"}


def test_config_and_loose_settings_together_are_refused():
    with pytest.raises(ValueError, match="region"):
        StorageOptions.of({"config": {"a": 1}, "region": "x"})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (StorageOptions, "attempt_timeout_s", 0),
        (StorageOptions, "request_timeout_s", -1),
        (StorageOptions, "max_attempts", 0),
        (StorageOptions, "max_requests", 0),
        (StorageOptions, "prefetch_bytes", -1),
        (partial(CacheSettings, "d"), "max_bytes", 0),
        (partial(CacheSettings, "d"), "block_bytes", -1),
        (partial(CacheSettings, "d"), "wait_s", 0),
        (CacheSettings, "directory", ""),
        (CacheSettings, "directory", "file:///%00"),
    ],
)
def test_what_cannot_be_meant_is_refused(kind, name, value):
    with pytest.raises(ValueError, match=f"{name}(={value!r}| holds a NUL)"):
        kind(**{name: value})


@pytest.mark.parametrize("given", ["s3", 5, ["a"]])
def test_other_types_are_refused(given):
    with pytest.raises(TypeError):
        StorageOptions.of(given)
    with pytest.raises(TypeError):
        StorageOptions(config=given)


def test_a_cache_is_given_by_a_path_or_by_settings(tmp_path):
    assert CacheSettings.of(None) is None
    given = CacheSettings.of(str(tmp_path))
    assert given == CacheSettings(tmp_path)
    assert CacheSettings.of(given) is given
    assert pickle.loads(pickle.dumps(given)) == given
    with pytest.raises(TypeError, match="cache=3"):
        CacheSettings.of(3)


def test_a_cache_in_a_store_is_refused_and_a_file_url_is_its_path(tmp_path):
    with pytest.raises(ValueError, match="a cache is a directory of this machine"):
        CacheSettings("s3://bucket/cache")
    assert CacheSettings(f"file://{tmp_path}/a%20b").directory == f"{tmp_path}/a b"
