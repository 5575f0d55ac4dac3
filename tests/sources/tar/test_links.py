"""Members whose bytes lie elsewhere: links are read, refused or counted, and never just missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

import shardwise as sw
import shardwise.compat.webdataset as wds
from shardwise.compat.wids.wids_mmtar import MMIndexedTar
from shardwise.sources.tar.index.build import build_index, build_indexes
from shardwise.storage.column_file import decode_columns, encode_columns
from tests.support.raw_tars import END, header, member, sign
from tests.support.web import reply, send_range, serving

NUM_SAMPLES = 60


def link(name: bytes, target: bytes, kind: bytes = b"1") -> bytes:
    block = bytearray(header(name, 4000, kind=kind))
    block[157 : 157 + len(target)] = target
    return sign(bytes(block))


def refusal(path: Path, data: bytes) -> sw.DataError:
    path.write_bytes(data)
    with pytest.raises(sw.DataError) as caught:
        build_index(str(path))
    # Programs written for WebDataset meet the same error behind the samples before it.
    with pytest.raises(sw.DataError) as streamed:
        list(wds.WebDataset(str(path), shardshuffle=False))
    assert streamed.value.reason == caught.value.reason
    return caught.value


@pytest.fixture(scope="module", params=["gnu", "posix", "ustar"])
def linked(request, tmp_path_factory) -> Path:
    """A folder with equal files as hard links, packed by GNU tar; long names in most formats."""
    directory = tmp_path_factory.mktemp("linked")
    prefix = "" if request.param == "ustar" else "d" * 120 + "/"
    files = directory / "files"
    (files / prefix).mkdir(parents=True)
    for i in range(NUM_SAMPLES):
        for field, data in (("bin", bytes([i % 7]) * (i % 7 * 300)), ("cls", b"%d" % (i % 2))):
            path, first = files / f"{prefix}{i:03d}.{field}", i % (7 if field == "bin" else 2)
            if i == first:
                path.write_bytes(data)
            else:
                # Each links to the name before it: chains, to GNU tar one file.
                os.link(files / f"{prefix}{first:03d}.{field}", path)
    options = ["--sort=name", f"--format={request.param}"]
    shard = directory / "shard.tar"
    subprocess.run(["tar", *options, "-cf", shard, "-C", files, "."], check=True)
    return shard


def wanted(shard: Path) -> list[dict[str, bytes]]:
    """The fields of the samples, as the standard library reads them."""
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(shard) as tar:
        for info in tar:
            found = None if info.isdir() else tar.extractfile(info)
            if found is not None:
                key, _, field = Path(info.name).name.partition(".")
                samples.setdefault(key, {})[field] = found.read()
    return list(samples.values())


def fields_of(samples) -> list[dict[str, bytes]]:
    return [{k: v for k, v in each.items() if not k.startswith("__")} for each in samples]


def test_hard_links_are_read_as_their_targets(linked):
    assert len(wanted(linked)) == NUM_SAMPLES
    dataset = sw.tar(str(linked))
    assert fields_of(dataset) == wanted(linked)
    loader = sw.DataLoader(dataset, batch_size=7, shuffle=True, remainder="uneven")
    found = {k: v for b in loader for k, v in zip(b["__key__"], b["bin"], strict=True)}
    assert list(dict(sorted(found.items())).values()) == [each["bin"] for each in wanted(linked)]


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


@pytest.mark.parametrize(
    ("links", "reason"),
    [
        (link(b"b/1.txt", b"nowhere.txt"), r"a hard link to 'nowhere.txt', which .*hard-deref"),
        (link(b"b/1.txt", b"b/2.txt") + member(b"b/2.txt", b"x"), "no regular file before it"),
        (link(b"b/1.txt", b"0.txt", b"2"), r"a symbolic link to '0.txt', .* `tar --dereference`"),
        (member(b"b/1.txt", b"rest", kind=b"M"), "another volume's member: .*--multi-volume"),
    ],
)
def test_a_field_without_data_in_the_shard_is_refused(tmp_path, links, reason):
    error = refusal(tmp_path / "x.tar", member(b"0.txt", b"x") + links + END)
    assert (error.key, error.field, error.offset) == ("b/1", "txt", 1536)
    assert re.search(reason, error.reason)


def test_links_that_are_no_field_are_counted_with_a_warning(tmp_path, caplog):
    path = tmp_path / "x.tar"
    links = (
        link(b"latest", b"v2", b"2") + link(b"README", b"nowhere") + link(b"._a.txt", b"b", b"2")
    )
    path.write_bytes(member(b"0.txt", b"x") + links + END)
    index = build_index(str(path))
    assert index.header.ignored == {"symbolic link": 2, "hard link": 1}
    assert "hard link: 1, symbolic link: 2" in caplog.text
    caplog.clear()
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
