"""Members to samples: whole ones or an error."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.scan.byte_source import FileBytes
from tests.support.raw_tars import END, member
from tests.support.tars import write_tar


def names_to_tar(path, names):
    return write_tar(path, [(name, name.encode()) for name in names])


MANY = [f"{i:05d}.{field}" for i in range(3000) for field in ("jpg", "cls")]


@pytest.mark.parametrize(
    ("names", "key", "field", "place"),
    [
        (["a.jpg", "a.txt", "b.jpg", "a.cls", "b.txt"], "a", "cls", 3),
        ([*MANY, "00007.txt"], "00007", "txt", 6000),
    ],
)
def test_members_that_stand_apart_are_refused(tmp_path, names, key, field, place):
    url = names_to_tar(tmp_path / "x.tar", names)
    with pytest.raises(DataError, match=r"stand apart .* sorted by name") as caught:
        build_index(url)
    error = caught.value
    wanted = (url, key, field, place * 1024 + 512)
    assert (error.url, error.key, error.field, error.offset) == wanted


@pytest.mark.parametrize("names", [["a.jpg", "a.jpg"], ["a.jpg", "a.cls", "a.JPG"]])
def test_two_members_for_one_field_are_refused(tmp_path, names):
    url = names_to_tar(tmp_path / "x.tar", ["0.jpg", *names, "b.jpg"])
    with pytest.raises(DataError, match="two members for one field") as caught:
        build_index(url)
    error = caught.value
    wanted = (url, "a", "jpg", 1024 * len(names) + 512)
    assert (error.url, error.key, error.field, error.offset) == wanted


def test_one_key_in_two_directories_is_two_samples(tmp_path):
    index = build_index(names_to_tar(tmp_path / "x.tar", ["a/0.jpg", "b/0.jpg", "0.jpg"]))
    assert list(index.keys) == ["a/0", "b/0", "0"]


def test_a_sample_may_lie_across_any_number_of_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(FileBytes, "first_read_bytes", 1024)
    monkeypatch.setattr(FileBytes, "block_bytes", 1024)
    monkeypatch.setattr(FileBytes, "sparse_headers", 1)
    names = [f"{key}.f{i}" for key in "ab" for i in range(50)]
    index = build_index(names_to_tar(tmp_path / "x.tar", names))
    assert list(index.keys) == ["a", "b"]
    assert len(index.fields) == 50


KEYS = st.lists(st.text("ab/", min_size=1, max_size=5), min_size=1, max_size=8, unique=True)


@settings(deadline=None, max_examples=60)
@given(keys=KEYS, seed=st.integers(0, 1000))
def test_shuffled_members_are_whole_samples_or_an_error(tmp_path_factory, keys, seed):
    keys = [key + "k" for key in keys]
    names = [f"{key}.{field}" for key in keys for field in ("x", "y")]
    random.Random(seed).shuffle(names)
    url = names_to_tar(tmp_path_factory.mktemp("tar") / "x.tar", names)
    order = [name.rpartition(".")[0] for name in names]
    together = sum(a != b for a, b in pairwise(order)) == len(keys) - 1
    try:
        index = build_index(url)
    except DataError:
        assert not together
        return
    assert together
    assert sorted(index.keys) == sorted(keys)
    for field in index.fields:
        assert (index.locate(field, np.arange(len(keys)))[1] > 0).all()


def test_keys_with_dots_end_in_advice_not_in_memory(tmp_path):
    names = [f"v1.{i:05d}.jpg" for i in range(2000)]
    with pytest.raises(DataError, match="keys can't hold dots"):
        build_index(names_to_tar(tmp_path / "x.tar", names))


def test_a_cut_between_two_members_of_a_sample_is_noticed(tmp_path):
    data = b"".join(member(b"%d.%s" % (i, f), b"1") for i in range(3) for f in (b"cls", b"jpg"))
    for num_members in range(1, 7):
        path = tmp_path / f"{num_members}.tar"
        path.write_bytes(data[: 1024 * num_members])
        if num_members % 2 and num_members > 1:
            with pytest.raises(DataError, match="cut between two members") as caught:
                build_index(str(path))
            assert (caught.value.key, caught.value.field) == (str(num_members // 2), "jpg")
        else:
            # What is left is whole but for its end, and the index says that this is missing.
            index = build_index(str(path), accept_unfinished=True)
            assert (index.num_samples, index.header.has_end) == ((num_members + 1) // 2, False)
    (tmp_path / "whole.tar").write_bytes(data[: 1024 * 5] + END)
    assert build_index(str(tmp_path / "whole.tar")).header.optional == {"jpg"}
