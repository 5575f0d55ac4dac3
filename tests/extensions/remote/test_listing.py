"""Remote patterns: what lies in a store is found, in order, and nothing found is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.base.errors import MissingShardError, StorageError
from shardwise.extensions.remote.storage import _matches
from shardwise.storage import StorageOptions, expand
from shardwise.storage.listing import is_remote_pattern
from tests.support.servers import nginx

NAMES = [
    "train/000.tar", "train/001.tar", "train/002.tar", "train/000.tar.swi", "train/.hidden.tar",
    "train/notes.txt", "train/deep/er/003.tar", "train/.secret/004.tar", "train-b/005.tar",
    "val/000.tar", "odd/a[1].tar", "odd/x+y z.tar",
]  # fmt: skip


@pytest.fixture(scope="module")
def options(s3):
    for name in NAMES:
        s3.put(name, b"x")
    return StorageOptions(config=s3.config)


def keys(s3, pattern, options):
    return [url.removeprefix(s3.url("")) for url in expand(s3.url(pattern), options=options)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("train/*.tar", ["train/000.tar", "train/001.tar", "train/002.tar"]),
        ("train/", ["train/000.tar", "train/001.tar", "train/002.tar"]),
        ("train/00[12].tar", ["train/001.tar", "train/002.tar"]),
        ("train/00[!12].tar", ["train/000.tar"]),
        ("*/000.tar", ["train/000.tar", "val/000.tar"]),
        ("t*/00?.tar", ["train-b/005.tar", "train/000.tar", "train/001.tar", "train/002.tar"]),
        ("train/**/003.tar", ["train/deep/er/003.tar"]),
        ("**/000.tar", ["train/000.tar", "val/000.tar"]),
        ("{val,train}/0*0.tar", ["val/000.tar", "train/000.tar"]),
        ("{train-b,val}/", ["train-b/005.tar", "val/000.tar"]),
        ("odd/a[1].tar", ["odd/a[1].tar"]),
        ("odd/x*", ["odd/x+y z.tar"]),
        ("train/*", ["train/000.tar", "train/001.tar", "train/002.tar", "train/notes.txt"]),
        ("train/00{0..1}.tar", ["train/000.tar", "train/001.tar"]),
        ("not/there.tar", ["not/there.tar"]),
    ],
)
def test_a_pattern_stands_for_these_objects(s3, options, pattern, found):
    assert keys(s3, pattern, options) == found


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("train/*.zip", "no file in the store matches"),
        ("none/", "it is empty"),
        ("", "give a glob"),
    ],
)
def test_nothing_found_is_an_error(s3, options, pattern, said):
    with pytest.raises(MissingShardError, match=said):
        expand(s3.url(pattern), options=options)


def test_a_directory_says_what_it_holds_instead(s3, options):
    s3.put("texts/a.txt", b"")
    with pytest.raises(MissingShardError, match=r"it holds a\.txt"):
        expand(s3.url("texts/"), options=options)


def test_names_without_patterns_ask_the_store_nothing(s3, options):
    before = len(s3.requests())
    expand(s3.url("train-{000..999}.tar"), options=options)
    assert len(s3.requests()) == before


def test_a_name_that_comes_twice_is_refused(s3, options):
    with pytest.raises(ValueError, match="named twice"):
        expand([s3.url("val/000.tar"), s3.url("val/*.tar")], options=options)


def test_a_store_that_refuses_is_named(s3):
    config = {**s3.config, "aws_secret_access_key": "wrong"}
    with pytest.raises(StorageError, match="can't list"):
        expand(s3.url("train/"), options=StorageOptions(config=config))


def test_web_servers_have_no_listing(tmp_path):
    with nginx(tmp_path) as server:
        for pattern in ("*.tar", "", "d/"):
            with pytest.raises(StorageError, match="brace pattern"):
                expand(f"{server.url}/{pattern}")
        urls = expand(f"{server.url}/{{a,b}}.tar?sig=*")
        assert urls == [f"{server.url}/a.tar?sig=*", f"{server.url}/b.tar?sig=*"]


def test_fsspec_is_listed():
    import fsspec

    memory = fsspec.filesystem("memory")
    try:
        for name in ("d/1.tar", "d/2.tar", "d/.h.tar", "d/e/3.tar"):
            memory.pipe_file(f"/{name}", b"x")
        assert expand("memory://d/") == ["memory://d/1.tar", "memory://d/2.tar"]
        assert expand("memory://d/*.tar") == ["memory://d/1.tar", "memory://d/2.tar"]
        assert expand("memory://d/**/*.tar")[-1] == "memory://d/e/3.tar"
    finally:
        memory.rm("/d", recursive=True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b/a.tar", False), ("s3://b/a/", True), ("s3://b", True), ("s3://b/", True),
        ("s3://b/a?.tar", True), ("https://h/a.tar?x=[1]*", False), ("http://[::1]/a.tar", False),
    ],
)  # fmt: skip
def test_what_is_a_pattern(url, expected):
    assert is_remote_pattern(url) is expected


NAME = st.text(alphabet="ab.", min_size=1, max_size=3)


@given(st.lists(NAME, min_size=1, max_size=4))
def test_a_double_star_matches_what_has_no_hidden_part(names):
    assert _matches(names, ["**"]) == (not any(name.startswith(".") for name in names))
    assert _matches(names, names) is True
    assert _matches(names, ["*"] * len(names)) == (not any(name.startswith(".") for name in names))
    assert not _matches(names, ["*"] * (len(names) + 1))


def test_a_listing_names_the_object_whose_name_stands_in_its_way(s3, options):
    s3.put("names/0.tar", b"0")
    s3.put("names/a\nb.tar", b"1")
    try:
        for pattern in ("names/", "names/*.tar", "names/**/*.tar"):
            with pytest.raises(StorageError, match=r"'names/a\\nb\.tar' there .* by braces"):
                keys(s3, pattern, options)
        assert keys(s3, "names/{0..0}.tar", options) == ["names/0.tar"]
    finally:
        s3.delete("names/a\nb.tar")
