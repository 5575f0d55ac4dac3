"""Writing shards by WebDataset's writers: whole or not at all, the same bytes each time."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile

import numpy as np
import PIL.Image
import pytest

import shardwise as sw
from shardwise.compat.webdataset import encoders, utils
from shardwise.compat.webdataset.autodecode import Decoder
from shardwise.compat.webdataset.cache import check_tar_format
from shardwise.compat.webdataset.writer import ShardWriter, TarWriter
from tests.support.ranks import run_forked


def members(path):
    with tarfile.open(path) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]


SAMPLE = {"__key__": "a", "txt": "ä", "cls": 3, "bin": b"\0"}


def write(path, *samples, **options):
    with TarWriter(path, **options) as sink:
        for sample in samples:
            sink.write(sample)


# One tar.


def test_members_stand_sorted_with_the_owner_that_is_asked_for(tmp_path):
    path = str(tmp_path / "a.tar")
    with TarWriter(path, user="me", group="us", mode=0o600, mtime=7) as sink:
        assert sink.write(SAMPLE) == 4
    assert members(path) == [("a.bin", b"\0"), ("a.cls", b"3"), ("a.txt", "ä".encode())]
    with tarfile.open(path) as tar:
        info = tar.next()
    # A long run must not remember every member.
    assert not sink.tarstream.members
    assert (info.uname, info.gname, info.mode, info.mtime) == ("me", "us", 0o600, 7)


@pytest.mark.parametrize("name", ["a.tar", "a.tgz", "a.tar.gz", "a.tar.bz2", "a.tar.xz"])
def test_the_same_samples_give_the_same_bytes(tmp_path, name):
    contents = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / name
        write(str(path), SAMPLE, {**SAMPLE, "__key__": "b", "txt.gz": "x" * 100})
        contents.append(path.read_bytes())
        assert len(members(path)) == 7
        assert check_tar_format(str(path))
    assert contents[0] == contents[1]
    # The time in the header of gzip, in whole seconds.
    assert not name.endswith("gz") or contents[0][4:8] == bytes(4)
    assert (contents[0][257:262] == b"ustar") == (name == "a.tar")


def test_compression_is_what_is_asked_for(tmp_path):
    path = str(tmp_path / "a.tar")
    write(path, SAMPLE, compress=True)
    assert len(members(path)) == 3
    with gzip.open(path) as file:
        assert file.read()[257:262] == b"ustar"
    path = str(tmp_path / "b.tgz")
    write(path, SAMPLE, compress=False)
    with open(path, "rb") as file:
        assert file.read()[257:262] == b"ustar"


def test_a_tar_takes_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"old")
    with TarWriter(path) as sink:
        sink.write(SAMPLE)
        assert path.read_bytes() == b"old"
    assert len(members(path)) == 3
    assert os.listdir(tmp_path) == ["a.tar"]
    with pytest.raises(RuntimeError, match="in the middle"), TarWriter(path) as sink:
        sink.write({**SAMPLE, "__key__": "b"})
        raise RuntimeError("in the middle")
    assert members(path)[0][0] == "a.bin"
    assert os.listdir(tmp_path) == ["a.tar"]


def test_a_writer_that_nobody_closes_leaves_nothing(tmp_path):
    sink = TarWriter(str(tmp_path / "a.tar"))
    sink.write(SAMPLE)
    del sink
    assert os.listdir(tmp_path) == []


def test_a_killed_program_leaves_no_tar(tmp_path):
    code = (
        "import os, sys; from shardwise.compat.webdataset.writer import TarWriter;"
        "s = TarWriter(sys.argv[1]); s.write({'__key__': 'a', 'bin': bytes(10**6)});"
        "print('written', flush=True); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "a.tar"
    assert run_forked(tmp_path, code, path, check=False) == "written\n"
    assert not path.exists()


def test_closing_twice_and_writing_after_it(tmp_path):
    sink = TarWriter(str(tmp_path / "a.tar"))
    sink.close()
    sink.close()
    assert members(tmp_path / "a.tar") == []
    with pytest.raises(ValueError, match="closed"):
        sink.write(SAMPLE)


def test_a_stream_stays_open():
    stream = io.BytesIO()
    write(stream, SAMPLE)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        assert len(tar.getnames()) == 3


def test_a_link_and_a_device_are_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "a.tar"
    link.symlink_to(tmp_path / "there" / "b.tar")
    write(str(link), SAMPLE)
    assert link.is_symlink()
    assert len(members(tmp_path / "there" / "b.tar")) == 3
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE) as cat:
        write(str(fifo), SAMPLE)
        assert len(cat.stdout.read()) == 10_240
    assert fifo.is_fifo()


def test_security_forbids_local_files_here_too(tmp_path, monkeypatch):
    monkeypatch.setattr(utils, "enforce_security", True)
    with pytest.raises(ValueError, match="cannot open local files"):
        TarWriter(str(tmp_path / "a.tar"))


def test_long_names_and_others_are_read_back(tmp_path):
    path = str(tmp_path / "a.tar")
    keys = ["x" * 300, "d" * 90 + "/" + "y" * 90, "ключ", "d/e/f"]
    write(path, *[{"__key__": key, "bin": b"1"} for key in keys])
    assert [name for name, _ in members(path)] == [f"{key}.bin" for key in keys]
    with pytest.raises(ValueError, match="too long"):
        write(path, {"__key__": keys[0], "bin": b"1"}, format="USTAR_FORMAT")


def test_our_own_reader_reads_it(tmp_path):
    path = str(tmp_path / "a.tar")
    write(path, *[{"__key__": f"{n:03d}", "cls": n, "json": {"n": n}} for n in range(20)])
    dataset = sw.tar(path).decode(cls=int, json="auto")
    assert [(s["__key__"], s["cls"], s["json"]) for s in dataset] == [
        (f"{n:03d}", n, {"n": n}) for n in range(20)
    ]


def test_what_no_reader_could_tell_apart_is_refused(tmp_path):
    with TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "a", "txt": "1"})
        # Fields of one sample in two calls: readers join them.
        sink.write({"__key__": "a", "cls": "1"})
        with pytest.raises(ValueError, match=r"'a'.*'txt'"):
            sink.write({"__key__": "a", "txt": "2"})
        sink.write({"__key__": "b", "txt": "1"})
        sink.write({"__key__": "a", "txt": "3"})
        with pytest.warns(UserWarning, match=r"'d/a\.b' has a dot.*'d/a'"):
            sink.write({"__key__": "d/a.b", "txt": "1"})
    assert len(members(tmp_path / "a.tar")) == 5


def test_samples_that_can_not_be_written_leave_the_tar_as_it_was(tmp_path):
    with TarWriter(str(tmp_path / "a.tar")) as sink:
        for sample, message in (
            ({"txt": "a"}, "__key__"),
            ({"__key__": 3, "txt": "a"}, "must be of string type"),
            ({"__key__": "a", "bin": b"", "odd": [1]}, "no handler found for odd"),
            ({"__key__": "a", "__index__": 3}, "metadata"),
        ):
            with pytest.raises(ValueError, match=message):
                sink.write(sample)
    assert members(tmp_path / "a.tar") == []


def test_encoders_are_the_users_if_they_say_so(tmp_path):
    path = str(tmp_path / "a.tar")
    write(path, {"__key__": "a", "odd": 3}, encoder={"odd": lambda value: b"<%d>" % value})
    assert members(path) == [("a.odd", b"<3>")]
    write(path, {"key": "b"}, encoder=lambda sample: {"__key__": sample["key"], "x": b"1"})
    assert members(path) == [("b.x", b"1")]
    with pytest.raises(ValueError, match="doesn't map to a bytes"):
        write(path, {"__key__": "a", "cls": 3}, encoder=False)
    with pytest.raises(ValueError, match="unknown decoder spec"):
        TarWriter(path, encoder="json")
    write(path, {"__key__": "a", "__url__": "u", "x": b"1"}, keep_meta=True)
    assert members(path) == [("a.__url__", b"u"), ("a.x", b"1")]


# A row of them.


def test_shards_are_cut_by_count_and_by_size(tmp_path):
    done = []
    with ShardWriter(
        str(tmp_path / "a-%03d.tar"), maxcount=3, post=done.append, start_shard=5, verbose=0
    ) as sink:
        for n in range(7):
            sink.write({"__key__": str(n), "cls": n})
        # The one under way is not there yet; the others are whole when `post` is called.
        assert done == [str(tmp_path / f"a-{n:03d}.tar") for n in (5, 6)]
        assert all(map(check_tar_format, done))
        assert not (tmp_path / "a-007.tar").exists()
    assert [len(members(path)) for path in done] == [3, 3, 1]
    assert (sink.total, sink.count, sink.shard) == (7, 1, 8)
    with ShardWriter(str(tmp_path / "b-%d.tar"), maxsize=10, verbose=0) as sink:
        for n in range(4):
            sink.write({"__key__": str(n), "bin": bytes(6)})
    assert len(list(tmp_path.glob("b-*.tar"))) == 2


def test_an_exception_removes_the_shard_under_way_and_keeps_the_others(tmp_path):
    with pytest.raises(RuntimeError):
        with ShardWriter(str(tmp_path / "a-%d.tar"), maxcount=2, verbose=0) as sink:
            for n in range(3):
                sink.write({"__key__": str(n), "cls": n})
            raise RuntimeError("in the middle")
    assert os.listdir(tmp_path) == ["a-0.tar"]


def test_what_the_opener_opened_is_closed_before_post_is_called(tmp_path):
    seen = []

    def opener(name):
        return open(name, "wb", buffering=1 << 20)

    def post(name):
        seen.append(len(members(name)))

    with ShardWriter(
        str(tmp_path / "a-%d.tar"), maxcount=1, opener=opener, post=post, verbose=0
    ) as sink:
        sink.write(SAMPLE)
        sink.write({**SAMPLE, "__key__": "b"})
    assert seen == [3, 3]
    kept = io.BytesIO()
    with ShardWriter("%d", opener=lambda name: kept, verbose=0) as sink:
        sink.write(SAMPLE)
    assert len(kept.getvalue()) == 10_240


def test_a_shard_that_is_begun_is_shown(tmp_path, capsys):
    ShardWriter(str(tmp_path / "a-%d.tar")).close()
    captured = capsys.readouterr()
    assert "a-0.tar" in captured.err
    assert captured.out == ""


def test_a_pattern_without_a_number_is_refused():
    with pytest.raises(ValueError, match="%06d"):
        ShardWriter("a.tar", verbose=0)


# Encoders.


def test_numbers_texts_and_arrays_come_back_through_the_decoders():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    sample = {
        "cls": 3, "txt": "ä", "json.gz": [1],
        "npy": array, "ten": array, "tb": [array, array], "npz": {"x": array},
    }  # fmt: skip
    data = encoders.encode_based_on_extension(sample, encoders.default_handlers)
    assert all(isinstance(value, bytes | memoryview) for value in data.values())
    decoded = Decoder([])({field: bytes(value) for field, value in data.items()})
    for field in ("cls", "txt", "json.gz"):
        assert decoded[field] == sample[field]
    for got in (decoded["npy"], decoded["npz"]["x"], decoded["ten"][0], decoded["tb"][1]):
        assert (got == array).all()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("ppm", (5, 7, 3)),
        *((kind, shape) for kind in ("png", "tiff", "PGM") for shape in ((5, 7, 1), (5, 7))),
        *((kind, (5, 7, channels)) for kind in ("png", "TIFF") for channels in (3, 4)),
    ],
)
def test_images_without_loss_keep_their_pixels_as_bytes_and_as_floats(kind, shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    nearly = np.clip(pixels / 255.0 - 0.4 / 255, 0, 1)
    for image in (pixels, pixels / 255.0, (pixels / 255.0).astype(np.float32), nearly):
        got = np.asarray(PIL.Image.open(io.BytesIO(encoders.imageencoder(image, kind))))
        # WebDataset cuts off where it should round.
        assert (got.reshape(shape) == pixels).all()


def test_the_whole_family_of_netpbm_is_written():
    pixels = np.zeros((4, 8, 3), np.uint8)
    for kind, magic in (("pbm", b"P4"), ("pgm", b"P5"), ("ppm", b"P6")):
        assert encoders.imageencoder(pixels, kind).startswith(magic)
    assert encoders.imageencoder(pixels, "jpg").startswith(b"\xff\xd8")


@pytest.mark.parametrize(
    "image",
    [np.full((2, 2), 1.1), np.full((2, 2), -0.1), np.full((2, 2), np.nan), np.zeros((2, 2, 2))],
)
def test_what_is_no_image_is_refused(image):
    with pytest.raises(ValueError, match="image"):
        encoders.imageencoder(image)
    with pytest.raises(TypeError, match="str"):
        encoders.imageencoder("image")


def test_objects_are_not_pickled_into_arrays():
    with pytest.raises(ValueError, match="allow_pickle"):
        encoders.numpy_dumps(np.array([{}], dtype=object))
    with pytest.raises(TypeError, match="dict"):
        encoders.numpy_npz_dumps([np.zeros(1)])


class OwnError(Exception):
    pass


def fail(value):
    raise OwnError


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("txt", None, TypeError),
        ("txt", "\ud800", ValueError),
        ("cls", "\ud800", ValueError),
        ("json", {1, 2}, TypeError),
        ("npy", np.array([object()]), ValueError),
        ("npz", 3, TypeError),
        ("jpg", 3, TypeError),
        ("png", np.zeros((2, 2, 7)), ValueError),
        ("bin", None, ValueError),
        ("_meta", 3, ValueError),
        ("own", 3, OwnError),
    ],
)
def test_an_error_of_a_value_has_its_key_and_field_in_its_text(field, value, error):
    handlers = {**encoders.default_handlers, "own": fail}
    writer = TarWriter(io.BytesIO(), encoder=handlers)
    with pytest.raises(error, match=rf"sample 'k7', field {field!r}, a \w+"):
        writer.write({"__key__": "k7", field: value})


def test_an_error_that_makes_its_own_text_has_them_in_a_note():
    def fail(value):
        raise OSError(5, "broken")

    writer = TarWriter(io.BytesIO(), encoder={"own": fail})
    with pytest.raises(OSError, match="broken") as caught:
        writer.write({"__key__": "k7", "own": 3})
    assert caught.value.__notes__ == ["in the sample 'k7', field 'own', a int"]
