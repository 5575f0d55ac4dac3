"""Options of storage: what users may write, and what is refused."""

from __future__ import annotations

import pytest

from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.options import StorageOptions


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
    ("name", "value"),
    [
        ("attempt_timeout_s", 0),
        ("request_timeout_s", -1),
        ("max_attempts", 0),
        ("max_requests", 0),
        ("prefetch_bytes", -1),
    ],
)
def test_what_cannot_be_meant_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        StorageOptions(**{name: value})


@pytest.mark.parametrize("given", ["s3", 5, ["a"]])
def test_other_types_are_refused(given):
    with pytest.raises(TypeError):
        StorageOptions.of(given)
    with pytest.raises(TypeError):
        StorageOptions(config=given)


def test_a_cache_in_a_store_is_refused_and_a_file_url_is_its_path(tmp_path):
    with pytest.raises(ValueError, match="a cache is a directory of this machine"):
        CacheSettings("s3://bucket/cache")
    assert CacheSettings(f"file://{tmp_path}/a%20b").directory == f"{tmp_path}/a b"
