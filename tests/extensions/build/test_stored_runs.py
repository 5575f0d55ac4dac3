"""Resharding copies samples as they stand: the same bytes as encoding each of them gives."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.extensions.build.inputs import DatasetInput
from shardwise.sources.tar.index.build import build_index
from tests.extensions.build.test_kills import shards_of
from tests.support.raw_tars import END, header, member, pax_records


def written(name: str, data: bytes) -> bytes:
    """A member as the writer makes it, of any name."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    try:
        made = info.tobuf(tarfile.USTAR_FORMAT)
    except ValueError:
        made = info.tobuf(tarfile.PAX_FORMAT)
    return made + data + bytes(-len(data) % 512)


def foreign(name: str, data: bytes, **stated: object) -> bytes:
    """A member with an owner and a time."""
    info = tarfile.TarInfo(name)
    stated = {"uid": 1000, "mtime": 1_600_000_000, "uname": "me", **stated}
    for what, value in {**stated, "size": len(data)}.items():
        setattr(info, what, value)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


def usual(numbers: range, *, size: int = 700) -> bytes:
    rng = np.random.default_rng(numbers.start)
    return b"".join(
        written(f"{n:05d}.bin", rng.bytes(size + n % 5)) + written(f"{n:05d}.cls", b"%d" % n)
        for n in numbers
    )


DIALECTS = {
    "as written": b"",
    "an owner and a time": foreign("x.bin", b"abc") + foreign("x.cls", b"1"),
    "one member of another program": written("x.bin", b"abc") + foreign("x.cls", b"1"),
    "fields that are not sorted": written("x.cls", b"1") + written("x.bin", b"abc"),
    "upper case": written("x.BIN", b"abc") + written("x.cls", b"1"),
    "empty payloads": written("x.bin", b"") + written("x.cls", b""),
    "one field only": written("x.cls", b"1") + written("y.bin", b"abc"),
    "a field that no other has": written("x.bin", b"abc") + written("x.txt", b"long " * 900),
    "a long name": written("d" * 90 + "/" + "x" * 60 + ".bin", b"abc"),
    "a longer name in PAX": written("x" * 120 + ".bin", b"abc"),
    "records of PAX that say nothing": member(b"PaxHeaders/x", pax_records(comment="x"), kind=b"x")
    + written("x.bin", b"abc"),
    "a directory between": written("x.bin", b"abc") + header(b"d/", 0, kind=b"5"),
    "a member that is left out between": written("x.bin", b"abc")
    + written("readme", b"hello")
    + written("x.cls", b"1"),
    "a padding of other bytes": written("x.bin", b"abc")[:-509] + b"!" * 509,
    "the first byte of a padding": written("x.bin", b"abc")[:-509] + b"!" + bytes(508),
    "the last byte of a padding": written("x.bin", b"abcdefgh")[:-1] + b"!",
    "a payload that fills its block": written("x.bin", b"!" * 512),
    "a key in another alphabet": written("gr\u00fcn.bin", b"abc"),
    "a key with a directory": written("a/b/x.bin", b"abc") + written("a/b/x.cls", b"1"),
    "a key that is refused": written("a/../x.bin", b"abc"),
    "an absolute key": written("/x.bin", b"abc"),
    "a field that is refused": written("x.a..b", b"abc"),
    "a larger sample than is read at once": written("x.bin", b"abc" * 1_500_000),
    "another mode": foreign("x.bin", b"abc", uid=0, mtime=0, uname="", mode=0o755),
}


def make(directory: Path, odd: bytes) -> list[str]:
    """Shards with odd samples at the beginning, inside and at the end."""
    directory.mkdir()
    (directory / "0.tar").write_bytes(odd + usual(range(30)) + END)
    (directory / "1.tar").write_bytes(usual(range(30, 50)) + odd + usual(range(60, 90)) + END)
    (directory / "2.tar").write_bytes(usual(range(90, 95)) + odd + END)
    return [f"{directory}/{n}.tar" for n in range(3)]


def keep(sample: object) -> bool:
    return True


def both(directory: Path, source: sw.Dataset, **options: object) -> tuple[object, object]:
    """What a build makes of copies, and what it makes of each sample by a filter that keeps all."""
    found = []
    for name, kept in (("copied", None), ("encoded", keep)):
        out = directory / name
        report = sw.build(
            source, out / "{shard:02d}.tar", filter=kept, num_workers=0,
            **{"samples_per_shard": 33, "on_error": "record", **options},
        )  # fmt: skip
        del report["seconds"], report["manifest"], report["errors"]
        indexes = {path.name: path.stat().st_size for path in sorted(out.glob("*.swi"))}
        for name in indexes:
            built = build_index(str(out / name.removesuffix(".swi")))
            assert (out / name).read_bytes() == built.to_bytes()
        errors = [path.name for path in out.glob("errors.*")]
        samples = list(sw.tar(f"{out}/manifest.swm"))
        found.append((report, shards_of(out), indexes, errors, samples))
    return found[0], found[1]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_copies_have_the_bytes_that_encoding_gives(tmp_path, dialect):
    source = sw.tar(make(tmp_path / "in", DIALECTS[dialect]))
    copied, encoded = both(tmp_path, source)
    assert copied == encoded


def test_copies_are_made_by_threads_and_other_samples_by_processes(tmp_path, monkeypatch):
    source = sw.tar(make(tmp_path / "in", b""))
    options = {"samples_per_shard": 9, "num_workers": 0}
    sw.build(source, tmp_path / "alone" / "{shard:02d}.tar", **options)

    def refuse(*_args, **_options):
        raise AssertionError("a process was started")

    monkeypatch.setattr("shardwise.extensions.build.workers.ProcessPoolExecutor", refuse)
    options["num_workers"] = 3
    sw.build(source, tmp_path / "threads" / "{shard:02d}.tar", **options)
    assert shards_of(tmp_path / "threads") == shards_of(tmp_path / "alone")
    assert not (tmp_path / "threads" / ".build").exists()
    with pytest.raises(AssertionError, match="a process was started"):
        sw.build(source, tmp_path / "kept" / "{shard:02d}.tar", filter=keep, **options)


def test_what_a_copying_thread_meets_ends_the_build_and_the_next_one_goes_on(tmp_path):
    paths = make(tmp_path / "in", b"")
    source, out = sw.tar(paths), tmp_path / "out" / "{shard:02d}.tar"
    whole = Path(paths[2]).read_bytes()
    times = os.stat(paths[2])
    options = {"samples_per_shard": 9, "num_workers": 2}
    os.truncate(paths[2], 1024)
    with pytest.raises(sw.DataError):
        sw.build(source, out, **options)
    Path(paths[2]).write_bytes(whole)
    os.utime(paths[2], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert sw.build(sw.tar(paths), out, **options)["out"] == len(source)
    assert not (tmp_path / "out" / ".build").exists()


def test_samples_as_the_writer_makes_them_are_copied_and_only_odd_ones_are_encoded(tmp_path):
    source = DatasetInput(sw.tar(make(tmp_path / "in", DIALECTS["an owner and a time"])))
    runs = list(source.stored(np.arange(len(source), dtype=np.int64)))
    assert [(run.stop - run.start, bool(run.keys)) for run in runs] == [
        (1, False), (30, True), (20, True), (1, False), (30, True), (5, True), (1, False)
    ]  # fmt: skip


@pytest.mark.parametrize("wanted", ["a shard", "decoded", "selected", "subset", "other order"])
def test_only_neighbours_that_nothing_is_done_to_are_copied(tmp_path, wanted):
    whole = sw.tar(make(tmp_path / "in", b""))
    ids = np.arange(10, dtype=np.int64)
    source = {
        "decoded": whole.decode(cls=int),
        "selected": whole.select("bin"),
        "subset": whole.subset(range(5, 50)),
    }.get(wanted, whole)
    runs = DatasetInput(source).stored(ids[::-1] if wanted == "other order" else ids)
    assert (runs is None) == (wanted != "a shard")


def test_a_key_of_two_shards_is_refused_once_whichever_way(tmp_path):
    directory = tmp_path / "in"
    directory.mkdir()
    for n in range(2):
        (directory / f"{n}.tar").write_bytes(usual(range(20)) + END)
    source = sw.tar([f"{directory}/{n}.tar" for n in range(2)])
    copied, encoded = both(tmp_path, source, samples_per_shard=40)
    assert copied == encoded
    assert copied[0]["out"] == 20
    assert copied[0]["failed"] == {"ValueError": 20}


def test_digests_are_checked_and_not_copied_over(tmp_path):
    with sw.TarWriter(tmp_path / "in.tar", digests=True) as writer:
        for n in range(5):
            writer.write({"__key__": str(n), "bin": b"%d" % n * 100})
    source = sw.tar(str(tmp_path / "in.tar"))
    assert DatasetInput(source).stored(np.arange(5)) is None
    data = bytearray((tmp_path / "in.tar").read_bytes())
    status = (tmp_path / "in.tar").stat()
    data[512 + 1024 * 2] ^= 1
    with open(tmp_path / "in.tar", "r+b") as file:
        file.write(data)
    os.utime(tmp_path / "in.tar", ns=(status.st_atime_ns, status.st_mtime_ns))
    copied, encoded = both(tmp_path, source, samples_per_shard=5)
    assert copied == encoded
    assert copied[0]["failed"] == {"DataError": 1}


def test_a_shard_that_is_cut_after_it_was_opened_fails_sample_by_sample(tmp_path):
    paths = make(tmp_path / "in", b"")
    source = sw.tar(paths)
    assert source[0]["cls"] == b"0"
    with open(paths[2], "r+b") as file:
        file.truncate(Path(paths[2]).stat().st_size - 4096)
    copied, encoded = both(tmp_path, source)
    assert copied == encoded
    assert sum(copied[0]["failed"].values()) > 0
