"""Programs written for WebDataset and wids meet links as `sw.tar` does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import shardwise as sw
import shardwise.compat.webdataset as wds
from shardwise.compat.wids.wids_mmtar import MMIndexedTar
from shardwise.sources.tar.index.build import build_index
from tests.support.linked_tars import FOREIGN, REFUSED, fields_of, link, make_linked, wanted
from tests.support.raw_tars import END, member
from tests.support.web import reply, send_range, serving


@pytest.fixture(scope="module", params=["gnu", "posix", "ustar"])
def linked(request, tmp_path_factory) -> Path:
    return make_linked(tmp_path_factory.mktemp("linked"), request.param)


def test_hard_links_of_a_remote_shard_are_read(linked):
    content = linked.read_bytes()

    def answer(handler):
        send_range(handler, content) if handler.path == "/x.tar" else reply(handler, 404)

    with serving(answer) as (url, _):
        assert fields_of(sw.tar(f"{url}/x.tar")) == wanted(linked)
        assert fields_of(wds.WebDataset(f"{url}/x.tar", shardshuffle=False)) == wanted(linked)


def test_programs_for_webdataset_and_wids_read_hard_links(linked):
    assert fields_of(wds.WebDataset(str(linked), shardshuffle=False)) == wanted(linked)
    flat = [each for sample in wanted(linked) for each in sample.values()]
    assert [data for _, data in MMIndexedTar(str(linked))] == flat


@pytest.mark.parametrize("links", [links for links, _ in REFUSED])
def test_a_stream_is_refused_with_the_reason_of_an_index(tmp_path, links):
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"0.txt", b"x") + links + END)
    with pytest.raises(sw.DataError) as caught:
        build_index(str(path))
    with pytest.raises(sw.DataError) as streamed:
        list(wds.WebDataset(str(path), shardshuffle=False))
    assert streamed.value.reason == caught.value.reason


def test_links_that_are_no_field_are_counted_with_a_warning(tmp_path, caplog):
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"0.txt", b"x") + FOREIGN + END)
    assert len(list(wds.WebDataset(str(path), shardshuffle=False))) == 1
    assert "hard link: 1, symbolic link: 2" in caplog.text


@pytest.mark.parametrize("form", ["pipe:cat {}", "{}.gz"])
def test_a_stream_that_cannot_go_back_reads_near_links_and_refuses_far_ones(tmp_path, form):
    path = tmp_path / "x.tar"
    near = member(b"0.txt", b"x") + link(b"1.txt", b"0.txt")
    far = member(b"2.bin", bytes(3 << 20)) + link(b"3.txt", b"0.txt") + link(b"4.txt", b"1.txt")
    path.write_bytes(near + far + END)
    subprocess.run(["gzip", "-k", path], check=True)
    found = []
    with pytest.raises(
        sw.DataError, match=r"'0.txt', whose data a pipe or a compressed shard"
    ) as e:
        found.extend(wds.WebDataset(form.format(path), shardshuffle=False))
    assert e.value.key == "3"
    assert len(sw.tar(str(path))) == 5
