"""The rule for names, against a plain regular expression."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.sources.tar.scan.names import Fields, split_names

RULE = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)


def as_array(names: list[str]):
    raw = [name.encode() for name in names]
    width = -(-max(map(len, raw)) // 8) * 8 or 8
    array = np.array(raw, dtype=f"S{width}").view(np.uint8).reshape(len(raw), width).copy()
    return array, np.array([len(name) for name in raw])


def split(names: list[str]):
    array, lengths = as_array(names)
    ignored: Counter[str] = Counter()
    rows, dots = split_names(array, lengths, ignored)
    found = dict.fromkeys(names)
    for row, dot in zip(rows.tolist(), dots.tolist(), strict=True):
        name = array[row, : lengths[row]].tobytes()
        found[names[row]] = (name[:dot].decode(), name[dot + 1 :].decode())
    return found, +ignored


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("0001.jpg", ("0001", "jpg")),
        ("train/0001.seg.png", ("train/0001", "seg.png")),
        ("a.b/c.d/track 2.0.txt", ("a.b/c.d/track 2", "0.txt")),
        ("./0001.jpg", ("./0001", "jpg")),
        ("a..jpg", ("a", ".jpg")),
        ("_x_.jpg", ("_x_", "jpg")),
        ("a/__b.jpg", ("a/__b", "jpg")),
        ("ä/ö.ü", ("ä/ö", "ü")),
        ("README", "no extension"),
        ("v1.2/README", "no extension"),
        ("0001.", "no extension"),
        ("", "no extension"),
        (".hidden", "hidden"),
        ("dir/._0001.jpg", "hidden"),
        ("__meta__", "metadata"),
        ("__meta__/info.json", "metadata"),
        ("./a/__meta__/b/info.json", "metadata"),
        ("0001.__key__", "metadata"),
    ],
)
def test_a_name_is_split_at_the_first_dot_of_its_base(name, wanted):
    found, ignored = split([name])
    assert (found[name] or next(iter(ignored))) == wanted
    # Among others the same is found.
    found, ignored = split(["x.y", name, "longer/than/the/others.jpg"])
    assert (found[name] or next(iter(ignored))) == wanted


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text("ab./Ü", min_size=1, max_size=12), min_size=1, max_size=8, unique=True))
def test_names_are_split_as_the_rule_says(names):
    found, ignored = split(names)
    for name in names:
        match = RULE.fullmatch(name)
        assert found[name] == (match.groups() if match else None)
    assert ignored.total() == sum(value is None for value in found.values())


def numbers_of(fields: Fields, extensions: list[str]):
    array, lengths = as_array([f"k.{extension}" for extension in extensions])
    return fields.number(array, lengths, np.full(len(array), 1)).tolist()


def test_fields_are_numbered_as_they_come_whatever_their_case():
    fields = Fields()
    assert numbers_of(fields, ["jpg", "CLS", "jpg", "cls", "a-much-longer-one.json"]) == [
        0, 1, 0, 1, 2,
    ]  # fmt: skip
    assert numbers_of(fields, ["Jpg", "ÜBER", "über", "x"]) == [0, 3, 3, 4]
    assert fields.names == ["jpg", "cls", "a-much-longer-one.json", "über", "x"]


def test_many_fields_are_numbered_too():
    fields = Fields()
    names = [f"f{i}" for i in range(100)]
    assert numbers_of(fields, names) == list(range(100))
    assert numbers_of(fields, names[::-1]) == list(range(100))[::-1]
