import hashlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import DataError, StorageError
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.index.shard_index import ShardIndex, index_path
from shardwise.sources.tar.write.writer import TarWriter
from shardwise.storage import expand
from shardwise.storage import write as atomic_module
from tests.support.forks import in_child
from tests.support.python_code import run_code


def read_tar(path):
    """The members of a tar by the standard library: name to bytes, in order."""
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def write_all(pattern, samples, **options):
    with TarWriter(pattern, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer


def numbered(count, size=16):
    return [{"__key__": f"{i:04d}", "bin": bytes([i % 256]) * size} for i in range(count)]


def test_samples_come_back_as_they_went_in_member_by_member(tmp_path):
    writer = write_all(
        tmp_path / "x-{shard:06d}.tar",
        [
            {"__key__": "a", "jpg": b"\xff\xd8", "cls": 3, "txt": "ä cat"},
            {"__key__": "d/b", "seg.png": bytearray(b"12"), "bin": memoryview(b"345")[::2]},
        ],
    )
    assert writer.shards == [str(tmp_path / "x-000000.tar")]
    assert writer.num_samples == 2
    assert read_tar(writer.shards[0]) == {
        "a.cls": b"3",
        "a.jpg": b"\xff\xd8",
        "a.txt": "ä cat".encode(),
        "d/b.bin": b"35",
        "d/b.seg.png": b"12",
    }


@pytest.mark.parametrize(
    ("field", "value", "data"),
    [
        ("cls", 3, b"3"),
        ("cls", -12, b"-12"),
        ("cls", np.int64(7), b"7"),
        ("cls", True, b"1"),
        ("cls", np.bool_(False), b"0"),
        ("score", 0.1, b"0.1"),
        ("score", np.float64(2.5), b"2.5"),
        ("score", 1e300, b"1e+300"),
        ("json", {"b": 1, "a": [None, "ä"]}, '{"b": 1, "a": [null, "ä"]}'.encode()),
        ("meta.json", [1, 2], b"[1, 2]"),
        ("json", None, b"null"),
        ("json", 3, b"3"),
        ("json", '{"as": "is"}', b'{"as": "is"}'),
        ("jpg", b"", b""),
    ],
)
def test_values_of_plain_types_have_one_meaning(tmp_path, field, value, data):
    write_all(tmp_path / "x.tar", [{"__key__": "k", field: value}], index=False)
    assert read_tar(tmp_path / "x.tar") == {f"k.{field}": data}


def test_arrays_go_into_npy_fields(tmp_path):
    arrays = [np.arange(6, dtype="<i4").reshape(2, 3).T, np.float16(3), np.zeros(0)]
    for number, array in enumerate(arrays):
        path = tmp_path / f"{number}.tar"
        write_all(path, [{"__key__": "k", "x.npy": array}], index=False)
        back = np.load(io.BytesIO(read_tar(path)["k.x.npy"]), allow_pickle=False)
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_pictures_and_tensors_are_encoded_by_the_fields_extension(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    sample = {
        "__key__": "k",
        "a.png": pixels,
        "b.png": PIL.Image.fromarray(pixels),
        "c.png": pixels[:, :, :1],
        "d.jpg": pixels,
        "e.webp": PIL.Image.fromarray(pixels),
        "f.npy": torch.arange(3),
        "g": torch.tensor(7),
    }
    write_all(tmp_path / "x.tar", [sample], index=False)
    members = read_tar(tmp_path / "x.tar")
    for name in ("k.a.png", "k.b.png"):
        np.testing.assert_array_equal(PIL.Image.open(io.BytesIO(members[name])), pixels)
    gray = np.asarray(PIL.Image.open(io.BytesIO(members["k.c.png"])))
    np.testing.assert_array_equal(gray, pixels[:, :, 0])
    shapes = {name: PIL.Image.open(io.BytesIO(members[name])) for name in ("k.d.jpg", "k.e.webp")}
    assert [(each.format, each.size) for each in shapes.values()] == [
        ("JPEG", (6, 8)), ("WEBP", (6, 8))
    ]  # fmt: skip
    assert np.load(io.BytesIO(members["k.f.npy"])).tolist() == [0, 1, 2]
    assert members["k.g"] == b"7"


class Image:
    """As PIL's: it has a meaning as bytes, but not one only."""


@pytest.mark.parametrize(
    ("field", "value", "error", "advice"),
    [
        ("jpg", np.zeros((4, 4, 2), np.uint8), ValueError, r"uint8 \[4, 4, 2\] is no picture"),
        ("png", np.zeros((4, 4, 3)), ValueError, r"float64 \[4, 4, 3\] is no picture"),
        ("jpg", PIL.Image.new("RGBA", (4, 4)), ValueError, "can't write this as JPEG"),
        ("txt", np.zeros((4, 4, 3), np.uint8), TypeError, r"numpy\.ndarray.*jpg, png or webp"),
        ("npy", torch.zeros(2, dtype=torch.bfloat16), TypeError, "convert the tensor"),
        ("jpg", Image(), TypeError, r"Image.*a Pillow image or pixels"),
        ("json", np.zeros(3), TypeError, r"numpy\.ndarray"),
        ("txt", None, TypeError, "can't write a NoneType"),
        ("pt", torch.zeros(2), TypeError, r"can't write a torch\.Tensor"),
        ("txt", ["a"], TypeError, "list in a field that ends in json"),
        ("npy", np.array([{}], dtype=object), TypeError, "dtype object would be pickled"),
        ("json", {"a": {1, 2}}, TypeError, "not JSON"),
        ("json", {"a": float("nan")}, ValueError, "not JSON"),
        ("txt", "\ud800", ValueError, "not UTF-8"),
        ("json", "\ud800", ValueError, "not UTF-8"),
    ],
)
def test_other_values_are_refused_with_advice_and_leave_the_writer_whole(
    tmp_path, field, value, error, advice
):
    with TarWriter(tmp_path / "x.tar") as writer:
        writer.write({"__key__": "before", "txt": "1"})
        with pytest.raises(error, match=advice) as caught:
            writer.write({"__key__": "bad", "aaa": b"first member", field: value})
        assert "'bad'" in str(caught.value)
        assert repr(field) in str(caught.value)
        writer.write({"__key__": "bad", "txt": "2"})
    assert read_tar(tmp_path / "x.tar") == {"before.txt": b"1", "bad.txt": b"2"}


@pytest.mark.parametrize(
    ("key", "error", "problem"),
    [
        ("", ValueError, "is empty"),
        ("d/", ValueError, "empty part"),
        ("/abs", ValueError, "absolute"),
        ("../x", ValueError, r"'\.\.'"),
        ("./x", ValueError, r"'\.'"),
        ("a.b", ValueError, "has a dot in 'a.b': it would be read as the key 'a'"),
        ("d/a.b", ValueError, "read as the key 'd/a', since"),
        ("__meta__", ValueError, "readers of tar shards skip"),
        ("d/__url__", ValueError, "readers of tar shards skip"),
        ("a\0b", ValueError, "NUL"),
        ("\ud800", ValueError, "surrogates"),
        (7, TypeError, "must be a str, not 7"),
        (None, TypeError, "must be a str"),
    ],
)
def test_keys_that_would_be_read_back_as_others_are_refused(tmp_path, key, error, problem):
    with TarWriter(tmp_path / "x.tar") as writer:
        with pytest.raises(error, match=problem):
            writer.write({"__key__": key, "txt": "1"})
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("key", ["d.e/x", "_x_", "__x", "a b", "ä/ö", "x" * 300, "...dir/x", "-"])
def test_unusual_keys_come_back_as_they_are(tmp_path, key):
    write_all(tmp_path / "x.tar", [{"__key__": key, "txt": "1", "a.b": b"2"}])
    assert read_tar(tmp_path / "x.tar") == {f"{key}.a.b": b"2", f"{key}.txt": b"1"}
    index = ShardIndex.load(index_path(str(tmp_path / "x.tar")))
    assert list(index.keys) == [key]
    assert sorted(index.fields) == ["a.b", "txt"]


@pytest.mark.parametrize(
    ("sample", "error", "problem"),
    [
        ({"": b"1"}, ValueError, "is empty"),
        ({".jpg": b"1"}, ValueError, "begins with a dot: write 'jpg'"),
        ({"a..b": b"1"}, ValueError, "empty part"),
        ({"JPG": b"1"}, ValueError, "use 'jpg'"),
        ({"a/b": b"1"}, ValueError, "can't be an extension"),
        ({"a\0": b"1"}, ValueError, "can't be an extension"),
        ({"\ud800": b"1"}, ValueError, "can't be an extension"),
        ({"__url__": b"1"}, ValueError, "remove it from the sample"),
        ({"__key__": "d/__a", "txt__": "1"}, ValueError, "makes a name of the form '__name__'"),
        ({3: b"1"}, TypeError, "must be a str, not 3"),
        ({}, ValueError, "has no field"),
    ],
)
def test_fields_that_would_be_read_back_as_others_are_refused(tmp_path, sample, error, problem):
    sample = {"__key__": "k1"} | sample
    with TarWriter(tmp_path / "x.tar") as writer:
        with pytest.raises(error, match=problem) as caught:
            writer.write(sample)
        assert repr(sample["__key__"]) in str(caught.value)
        with pytest.raises(ValueError, match=r"needs a '__key__'; this one has \['txt'\]"):
            writer.write({"txt": "1"})


def test_a_key_may_be_written_once_in_all_shards(tmp_path):
    with TarWriter(tmp_path / "{shard}.tar", max_samples=1) as writer:
        writer.write({"__key__": "k", "txt": "1"})
        writer.write({"__key__": "l", "txt": "1"})
        with pytest.raises(ValueError, match="'k' was written before"):
            writer.write({"__key__": "k", "cls": 1})
    assert writer.num_samples == 2


def test_the_same_samples_give_the_same_bytes_whatever_the_order_of_the_dicts(tmp_path):
    samples = [
        {"__key__": f"{i}", "cls": i, "txt": "x" * i, "json": {"i": i}, "a.npy": np.arange(i)}
        for i in range(9)
    ]
    other = [dict(reversed(sample.items())) for sample in samples]
    first = write_all(tmp_path / "a" / "{shard}.tar", samples, max_samples=4)
    second = write_all(tmp_path / "b" / "{shard}.tar", other, max_samples=4)
    assert len(first.shards) == 3
    for one, two in zip(first.shards, second.shards, strict=True):
        assert Path(one).read_bytes() == Path(two).read_bytes()


def test_the_bytes_are_those_of_a_golden_digest(tmp_path):
    write_all(
        tmp_path / "x.tar",
        [
            {"__key__": "0001", "cls": 3, "jpg": b"\xff\xd8" * 300},
            {"__key__": "long/" * 60 + "ä", "txt": "ä"},
        ],
        index=False,
    )
    digest = hashlib.sha256((tmp_path / "x.tar").read_bytes()).hexdigest()
    assert digest == "5e866e78698896fa47d8a698ef4f0860165f23630e8bd2d3c3d884d9075fb09b"


def test_max_samples_closes_a_shard_as_soon_as_it_is_full(tmp_path):
    with TarWriter(tmp_path / "{shard:03d}.tar", max_samples=2) as writer:
        for number, sample in enumerate(numbered(5), 1):
            writer.write(sample)
            assert len(writer.shards) == number // 2
    assert [len(read_tar(path)) for path in writer.shards] == [2, 2, 1]
    assert writer.shards == [str(tmp_path / f"{i:03d}.tar") for i in range(3)]


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=12),
    # Whole blocks, so that shards are often exactly full.
    max_bytes=st.integers(1, 24).map(lambda blocks: blocks * 512),
    max_samples=st.none() | st.integers(1, 4),
)
def test_shards_keep_to_both_limits_and_are_as_full_as_they_can_be(
    tmp_path_factory, sizes, max_bytes, max_samples
):
    directory = tmp_path_factory.mktemp("limits")
    samples = [{"__key__": f"{i}", "bin": bytes(size)} for i, size in enumerate(sizes)]
    writer = write_all(
        directory / "{shard:02d}.tar",
        samples,
        max_bytes=max_bytes,
        max_samples=max_samples,
        index=False,
    )
    blocks = [512 + -(-size // 512) * 512 for size in sizes]
    keys = []
    for number, path in enumerate(writer.shards):
        held = [int(name[:-4]) for name in read_tar(path)]
        length = Path(path).stat().st_size
        assert length == sum(blocks[i] for i in held) + 1024
        assert length <= max_bytes or len(held) == 1
        assert max_samples is None or len(held) <= max_samples
        if number + 1 < len(writer.shards):
            full = length + blocks[held[-1] + 1] > max_bytes or len(held) == max_samples
            assert full
        keys += held
    assert keys == list(range(len(sizes)))


def test_a_pattern_of_one_name_takes_one_shard_only(tmp_path):
    assert write_all(tmp_path / "one.tar", numbered(3), max_samples=3).num_samples == 3
    with pytest.raises(ValueError, match=r"second shard is needed.*two\.tar.*{shard:06d}"):
        write_all(tmp_path / "two.tar", numbered(4), max_samples=3)
    # The first was full, and is finished.
    assert len(read_tar(tmp_path / "two.tar")) == 3


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("w-%06d.tar", ["w-000000.tar", "w-000001.tar"]),
        ("%d/w.tar", ["0", "1"]),
        ("w-%03d-{{x}}.tar", ["w-%03d-{x}.tar"]),
        ("a%20dir.tar", ["a%20dir.tar"]),
    ],
)
def test_patterns_of_webdataset_mean_what_they_mean_there(tmp_path, pattern, names):
    writer = TarWriter(tmp_path / pattern, max_samples=3, index=False)
    for sample in numbered(6 if len(names) == 2 else 3):
        writer.write(sample)
    assert names_in(tmp_path) == names


def test_names_that_are_not_read_are_refused_before_anything_is_written(tmp_path):
    with TarWriter(tmp_path / "x.tar") as writer:
        for sample, problem in (
            ({"__key__": "k" * 5000, "txt": "1"}, "name of 5004 bytes: at most 4096 are read"),
            ({"__key__": "k" * 4094, "ä": "1"}, "name of 4097 bytes"),
            ({"__key__": "k"} | {f"f{i}": "1" for i in range(1025)}, "1025 different fields"),
        ):
            with pytest.raises(ValueError, match=problem):
                writer.write(sample)
        assert names_in(tmp_path) == []
        writer.write({"__key__": "k" * 4093, "ä": "1"})
        writer.write({"__key__": "k"} | {f"f{i}": "1" for i in range(1023)})
        with pytest.raises(ValueError, match=r"1025 different fields.*at most 1024"):
            writer.write({"__key__": "l", "one more": "1"})
    assert build_index(writer.shards[0]).num_samples == 2


def test_a_shard_that_cannot_be_read_back_gets_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.sources.tar.scan.samples._MAX_EMPTY_CELLS", 10)
    samples = [{"__key__": f"{i}", f"f{i}": "1"} for i in range(30)]
    for index in (True, False):
        with pytest.raises(DataError, match="keys can't hold dots"):
            write_all(tmp_path / "x.tar", samples, index=index)
        assert names_in(tmp_path) == []


def test_a_writer_without_samples_writes_nothing(tmp_path):
    assert write_all(tmp_path / "x.tar", []).shards == []
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("digests", [False, True])
def test_an_index_lies_beside_each_shard_and_is_the_one_that_would_be_built(tmp_path, digests):
    writer = write_all(tmp_path / "{shard}.tar", numbered(5), max_samples=3, digests=digests)
    assert names_in(tmp_path) == ["0.tar", "0.tar.swi", "1.tar", "1.tar.swi"]
    for path, count in zip(writer.shards, (3, 2), strict=True):
        loaded = ShardIndex.load(index_path(path))
        built = build_index(path, digests=digests)
        assert loaded.num_samples == built.num_samples == count
        assert loaded.to_bytes() == built.to_bytes()
        assert loaded.num_bytes == Path(path).stat().st_size
        assert (loaded.digests("bin") is not None) == digests
    write_all(tmp_path / "bare" / "x.tar", numbered(1), index=False)
    assert names_in(tmp_path / "bare") == ["x.tar"]


def test_the_index_of_many_members_of_many_names_is_the_one_that_would_be_built(tmp_path):
    samples = [
        {"__key__": f"{'d' * (n % 3 * 70)}k/{n}", "txt": "x" * (n * 37 % 1100)}
        | ({"\u00fc": b"", "x" * (n % 120 + 1): 1} if n % 7 == 3 else {})
        for n in range(1500)
    ]
    (path,) = write_all(tmp_path / "x.tar", samples).shards
    assert Path(index_path(path)).read_bytes() == build_index(path).to_bytes()


def test_an_exception_removes_the_shard_under_way_and_keeps_the_finished_ones(tmp_path):
    def write_some_and_fail(error):
        with TarWriter(tmp_path / "{shard}.tar", max_samples=2, index=False) as writer:
            for sample in numbered(3):
                writer.write(sample)
            assert len(names_in(tmp_path)) == 2
            raise error

    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error):
            write_some_and_fail(error)
        assert names_in(tmp_path) == ["0.tar"]
        (tmp_path / "0.tar").unlink()


def test_a_writer_may_be_closed_by_hand_and_then_writes_no_more(tmp_path):
    writer = TarWriter(tmp_path / "x.tar")
    writer.write(numbered(1)[0])
    writer.close()
    writer.close()
    assert writer.shards == [str(tmp_path / "x.tar")]
    with pytest.raises(ValueError, match="closed"):
        writer.write({"__key__": "z", "txt": "1"})


def test_existing_shards_are_refused_unless_overwriting_is_asked_for(tmp_path):
    write_all(tmp_path / "{shard}.tar", numbered(1))
    with pytest.raises(FileExistsError, match=r"0\.tar' exists already.*overwrite=True"):
        TarWriter(tmp_path / "{shard}.tar")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "1.tar").write_bytes(b"another's")
    with pytest.raises(FileExistsError, match=r"1\.tar' exists already"):
        write_all(tmp_path / "7" / "{shard}.tar", numbered(3), max_samples=1)
    assert (tmp_path / "7" / "1.tar").read_bytes() == b"another's"
    write_all(tmp_path / "{shard}.tar", numbered(2, size=2000), overwrite=True)
    assert len(read_tar(tmp_path / "0.tar")) == 2
    assert ShardIndex.load(index_path(str(tmp_path / "0.tar"))).num_samples == 2


@pytest.mark.parametrize(
    ("patterns", "options", "problem"),
    [
        ("{x}.tar {}.tar {shard:zz}.tar {shard.tar {0}.tar", {}, "other braces"),
        ("x.tar.gz x {shard}.zip", {}, r"must end in '\.tar'"),
        ("x.tar", {"max_samples": 0}, "max_samples=0"),
        ("x.tar", {"max_bytes": 0}, "max_bytes=0"),
    ],
)
def test_patterns_and_limits_that_make_no_sense_are_refused(tmp_path, patterns, options, problem):
    for pattern in patterns.split():
        with pytest.raises(ValueError, match=problem):
            TarWriter(tmp_path / pattern, **options)


@pytest.mark.extension
def test_what_is_no_store_is_refused():
    with pytest.raises(StorageError, match="scheme 'nosuch' is not supported"):
        TarWriter("nosuch://bucket/{shard}.tar")


def test_gnu_tar_reads_what_is_written(tmp_path):
    if not shutil.which("tar"):
        pytest.skip("no tar command here")
    samples = [
        {"__key__": "a", "txt": "1", "cls": 2},
        {"__key__": "x" * 300, "txt": "long"},
        {"__key__": "d/" * 60 + "b", "txt": "prefix"},
    ]
    write_all(tmp_path / "x.tar", samples, index=False)
    listing = subprocess.run(
        ["tar", "tf", str(tmp_path / "x.tar")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listing.stdout.split() == list(read_tar(tmp_path / "x.tar"))
    assert not listing.stderr


FULL_DISK = """
import resource, sys
from shardwise.base.errors import DataError, StorageError
from shardwise.sources.tar.write.writer import TarWriter
# No file of this process may grow past this: what a full disk does to write().
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
writer = TarWriter(sys.argv[1] + "/{shard}.tar", max_samples=8)
try:
    for i in range(8):
        writer.write({"__key__": str(i), "bin": bytes(1000)})
    for i in range(8, 99):
        writer.write({"__key__": str(i), "bin": bytes(3000)})
except StorageError as error:
    print(i, error)
try:
    writer.write({"__key__": "later", "bin": b""})
except ValueError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_that_names_the_shard_and_leaves_whole_shards_only(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = run_code(FULL_DISK, tmp_path)
    first, second = done.stdout.splitlines()
    assert first.startswith(f"13 can't write the shard '{tmp_path}/1.tar': File too large")
    assert second == "the writer is closed"
    assert names_in(tmp_path) == ["0.tar", "0.tar.swi"]
    assert len(read_tar(tmp_path / "0.tar")) == 8


def test_an_index_that_cannot_be_written_is_an_error_that_leaves_the_shard_whole(tmp_path):
    (tmp_path / "x.tar.swi").mkdir()
    with pytest.raises(StorageError, match=r"x\.tar' is whole, but its index can't be written"):
        write_all(tmp_path / "x.tar", numbered(3))
    assert len(read_tar(tmp_path / "x.tar")) == 3


KILLED = """
import os, signal, sys
from shardwise.sources.tar.write.writer import TarWriter
with TarWriter(sys.argv[1] + "/{shard}.tar", max_samples=4) as writer:
    for i in range(6):
        writer.write({"__key__": str(i), "bin": bytes(1000)})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing_that_a_later_run_would_trust(tmp_path):
    done = run_code(KILLED, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    hidden, *rest = names_in(tmp_path)
    assert hidden.startswith(".1.tar.")
    assert rest == ["0.tar", "0.tar.swi"]
    # Files of another machine, of a process that runs, and of other programs are not ours.
    host, _, ours = hidden.removeprefix(".1.tar.").partition("-")
    others = [hidden.replace(host, "0" * 8), hidden.replace(ours, f"{os.getpid()}-01234567.tmp"),
              ".1.tar.tmp", ".x.12-01234567.tmp"]  # fmt: skip
    for name in others:
        (tmp_path / name).write_bytes(b"not ours")
    assert expand(tmp_path) == [str(tmp_path / "0.tar")]
    assert len(read_tar(tmp_path / "0.tar")) == 4
    # The later run writes the same names again, beside what was left.
    again = write_all(tmp_path / "{shard}.tar", numbered(6), max_samples=4, overwrite=True)
    assert expand(tmp_path) == again.shards
    assert [len(read_tar(path)) for path in again.shards] == [4, 2]
    assert not (tmp_path / hidden).exists()
    assert all((tmp_path / name).exists() for name in others)


LIVE = """
import sys
from shardwise.sources.tar.write.writer import TarWriter
with TarWriter(sys.argv[1] + "/live.tar") as writer:
    writer.write({"__key__": "a", "bin": bytes(1000)})
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_writer_leaves_what_another_one_is_writing(tmp_path, monkeypatch):
    with subprocess.Popen(
        [sys.executable, "-c", LIVE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"ready\n"
        write_all(tmp_path / "1.tar", numbered(1))
        # As in another container, where the other process has no number.
        monkeypatch.setattr(atomic_module, "is_running", lambda _: False)
        write_all(tmp_path / "2.tar", numbered(1))
        other.stdin.close()
    assert other.returncode == 0
    assert list(read_tar(tmp_path / "live.tar")) == ["a.bin"]


REMOTE_KILLED = """
import os, signal, sys, tempfile
from shardwise.sources.tar.write.writer import TarWriter
tempfile.tempdir = sys.argv[1]
writer = TarWriter("s3://bucket/{shard}.tar", overwrite=True)
writer.write({"__key__": "a", "bin": bytes(1000)})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.extension
def test_a_killed_writer_of_remote_shards_leaves_nothing_on_this_machine(tmp_path):
    done = run_code(REMOTE_KILLED, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert names_in(tmp_path) == []


def test_a_forked_child_that_ends_does_not_touch_the_shard_under_way(tmp_path):
    with TarWriter(tmp_path / "x.tar") as writer:
        for sample in numbered(3):
            writer.write(sample)
        in_child(lambda: writer._abort(RuntimeError("the child's own")))
        writer.write({"__key__": "last", "txt": "1"})
    assert len(read_tar(tmp_path / "x.tar")) == 4
