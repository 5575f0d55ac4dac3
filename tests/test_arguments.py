"""Arguments are refused by name before they get far."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.base.arguments import directory_text


@pytest.mark.parametrize(
    "place",
    ["", "indexes", "a[b", "//[x", "a::b", "file:///data", "s3://bucket", "https://host:80/a", "~"],
)
def test_a_directory_is_a_path_or_a_url_of_a_host(place):
    assert directory_text("index", place) == place
    assert directory_text("index", Path(place)) == str(Path(place))


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("s3://", "index='s3://' names no host or bucket"),
        ("S3:///a", "index='S3:///a' names no host or bucket"),
        ("http://[", "index='http://\\[' is no URL"),
        ("a\0b", "index holds a NUL"),
        ("\ud800", "index holds a lone surrogate"),
    ],
)
def test_another_name_is_refused(place, why):
    with pytest.raises(ValueError, match=why):
        directory_text("index", place)


def test_what_is_no_text_is_refused():
    with pytest.raises(TypeError, match="index must be a str or a path, not a int"):
        directory_text("index", 7)
