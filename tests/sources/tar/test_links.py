"""Members whose bytes lie elsewhere: links are read, refused or counted, and never just missing."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.sources.tar.index.build import build_index, build_indexes
from shardwise.storage.column_file import decode_columns, encode_columns
from tests.support.linked_tars import (
    FOREIGN,
    NUM_SAMPLES,
    REFUSED,
    fields_of,
    link,
    make_linked,
    wanted,
)
from tests.support.raw_tars import END, member


@pytest.fixture(scope="module", params=["gnu", "posix", "ustar"])
def linked(request, tmp_path_factory) -> Path:
    return make_linked(tmp_path_factory.mktemp("linked"), request.param)


def test_hard_links_are_read_as_their_targets(linked):
    assert len(wanted(linked)) == NUM_SAMPLES
    dataset = sw.tar(str(linked))
    assert fields_of(dataset) == wanted(linked)
    loader = sw.DataLoader(dataset, batch_size=7, shuffle=True, remainder="uneven")
    found = {k: v for b in loader for k, v in zip(b["__key__"], b["bin"], strict=True)}
    assert list(dict(sorted(found.items())).values()) == [each["bin"] for each in wanted(linked)]


def test_digests_verify_and_copies_hold_for_shards_with_hard_links(linked, tmp_path):
    shard = tmp_path / "shard.tar"
    shutil.copyfile(linked, shard)
    (built,) = build_indexes([str(shard)], digests=True)
    assert built.error is None
    os.utime(shard, (1, 1))
    assert fields_of(sw.tar(str(shard))) == wanted(linked)


def test_a_link_leads_to_the_last_member_of_its_name_before_it(tmp_path):
    path = tmp_path / "x.tar"
    parts = [
        member(b"x", b"old"),
        member(b"./x", b"new"),
        link(b"0.txt", b"/x"),
        member(b"x", b"3"),
    ]
    # A link to a link, and one to a name without a field.
    path.write_bytes(b"".join([*parts, link(b"1.txt", b"./0.txt")]) + END)
    assert [each["txt"] for each in sw.tar(str(path))] == [b"new", b"new"]


@pytest.mark.parametrize(("links", "reason"), REFUSED)
def test_a_field_without_data_in_the_shard_is_refused(tmp_path, links, reason):
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"0.txt", b"x") + links + END)
    with pytest.raises(sw.DataError) as caught:
        build_index(str(path))
    error = caught.value
    assert (error.key, error.field, error.offset) == ("b/1", "txt", 1536)
    assert re.search(reason, error.reason)


def test_links_that_are_no_field_are_counted_with_a_warning(tmp_path, caplog):
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"0.txt", b"x") + FOREIGN + END)
    index = build_index(str(path))
    assert index.header.ignored == {"symbolic link": 2, "hard link": 1}
    assert "hard link: 1, symbolic link: 2" in caplog.text


def test_an_index_that_left_links_out_is_not_trusted(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"0.txt", b"x") + link(b"1.txt", b"0.txt") + END)
    build_indexes([str(path)])
    index = tmp_path / "x.tar.swi"
    metadata, columns = decode_columns(index.read_bytes())
    assert metadata["ignored"] == "{}"
    index.write_bytes(encode_columns({**metadata, "ignored": json.dumps({"link": 1})}, columns))
    with pytest.raises(sw.DataError, match=r"a release that left hard links out.; make it again"):
        len(sw.tar(str(path)))
    build_indexes([str(path)])
    assert len(sw.tar(str(path))) == 2
