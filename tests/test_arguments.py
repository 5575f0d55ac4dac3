"""Arguments are refused by name before they get far."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from shardwise import testing
from shardwise.base.arguments import check_choice, directory_text, no_such_field


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


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("Nested", "; did you mean 'nested'?"),
        ("nestd", "; did you mean 'nested'?"),
        ("x", ""),
        (3, ""),
    ],
)
def test_a_choice_that_there_is_not_is_told_with_all_there_are(value, hint):
    with pytest.raises(ValueError, match="use one of") as caught:
        check_choice("ragged", value, ("list", None, "nested"))
    known = "'list', None, 'nested'"
    assert str(caught.value) == f"ragged={value!r}: use one of {known}{hint}"


def test_a_choice_may_be_of_a_function_and_be_one_of_several_types():
    check_choice("start", None, (None, "first"))
    with pytest.raises(
        ValueError, match=r"^audio\(start='frist'\): use one of 'first' or seconds; did"
    ):
        check_choice("start", "frist", ("first",), of="audio", more=" or seconds")


def test_a_field_that_there_is_not_is_told_with_the_others():
    assert (
        no_such_field("tx", ["txt"]) == "no field 'tx': the fields are 'txt'; did you mean 'txt'?"
    )
    assert no_such_field("a", []) == "no field 'a': the fields are none"
    many = no_such_field("png", [f"{number}.png" for number in range(3000)])
    assert "'19.png' and 2,980 more; a field's name begins at the first dot" in many
    assert len(many) < 500


@pytest.mark.parametrize("name", [name for name in testing.__all__ if name.startswith("check_")])
def test_a_check_suggests_the_argument_that_was_meant(name):
    check = getattr(testing, name)
    known = next(iter(inspect.signature(check).parameters))
    with pytest.raises(TypeError, match=rf"{name}\(\) has no argument.*did you mean {known}="):
        check(**{f"{known}s": 1})
