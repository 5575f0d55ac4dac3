"""Files as samples: class folders, and lists of paths."""

import json
import os
import pickle

import cv2
import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, MissingShardError, StorageError
from shardwise.sources.files.source import FilesSource
from shardwise.testing import check_source


def write(path, data=b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_class_folders_and_lists_keep_what_a_source_keeps(tmp_path):
    sizes = {"a": 4, "b": 0, "c": 3}
    expected = []
    for number, (name, size) in enumerate(sizes.items()):
        (tmp_path / "t" / name).mkdir(parents=True)
        for i in range(size):
            file = f"{name}/{i}.{('jpg', 'JPEG', 'png')[i % 3]}"
            data = b"%d" % len(expected)
            write(tmp_path / "t" / file, data)
            expected.append({"__key__": file, "image": data, "cls": number, "class": name})
    source = FilesSource(tmp_path / "t")
    check_source(source, expected=expected)
    assert source.classes == tuple(sizes)
    assert [shard.num_samples for shard in source.manifest.shards] == list(sizes.values())
    assert source.default_shuffle == "full"
    assert repr(source) == f"FilesSource({str(tmp_path / 't')!r})"
    rows = [{"path": s["__key__"], "cls": s["cls"], "class": s["class"]} for s in expected]
    path = lists(tmp_path, "\n".join(map(json.dumps, rows)), "list.jsonl")
    check_source(FilesSource(path, root=tmp_path / "t"), expected=expected)


def test_a_folder_that_is_a_pattern_or_has_several_kinds_is_answered_with_suffixes(tmp_path):
    for name in ("cats/a.mp4", "cats/notes.txt"):
        write(tmp_path / name)
    with pytest.raises(DataError, match=r"suffixes=\('\.mp4',\).*--suffixes \.mp4,.*file\.py:name"):
        len(sw.files(tmp_path))
    with pytest.raises(StorageError, match=r"patterns are not expanded.*suffixes="):
        len(sw.files(tmp_path / "*" / "*.mp4"))


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"])
def test_a_line_of_json_ends_at_a_line_feed_only(tmp_path, character):
    rows = [{"path": f"{i}.txt", "said": f"a{character}b"} for i in range(3)]
    for row in rows:
        write(tmp_path / row["path"])
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    ds = sw.files(lists(tmp_path, text, "list.jsonl"))
    assert [sample["said"] for sample in ds] == [f"a{character}b"] * 3


def test_images_of_every_kind_are_one_field(tmp_path):
    pixels = np.zeros((4, 6, 3), np.uint8)
    for i, suffix in enumerate((".jpg", ".png", ".WEBP")):
        data = cv2.imencode(suffix.lower(), pixels)[1].tobytes()
        write(tmp_path / ("cat", "dog")[i % 2] / f"{i}{suffix}", data)
    ds = sw.files(tmp_path).select("image", "cls").decode(image=sw.image(size=(4, 6)))
    assert ds.layout()["cls"] == ((), np.dtype(np.int64))
    with sw.DataLoader(ds, batch_size=3, rank=0, world_size=1) as loader:
        (batch,) = loader
    assert batch["image"].shape == (3, 3, 4, 6)
    assert batch["cls"].tolist() == [0, 0, 1]


def test_files_of_a_class_may_lie_deeper_and_hidden_ones_do_not_count(tmp_path):
    write(tmp_path / "b" / "x" / "2.txt", b"b2")
    write(tmp_path / "b" / "1.txt", b"b1")
    write(tmp_path / "a" / "1.txt", b"a1")
    write(tmp_path / "a" / ".DS_Store")
    write(tmp_path / ".git" / "config.txt")
    assert [(s["__key__"], s["text"], s["cls"]) for s in sw.files(tmp_path)] == [
        ("a/1.txt", b"a1", 0),
        ("b/1.txt", b"b1", 1),
        ("b/x/2.txt", b"b2", 1),
    ]


def test_a_folder_without_classes_has_none(tmp_path):
    for i in range(1030):
        write(tmp_path / f"{i:05d}.wav", b"%d" % i)
    ds = sw.files(tmp_path)
    assert ds.fields == ("audio",)
    assert [shard.num_samples for shard in ds.manifest.shards] == [1024, 6]
    assert ds[1029] == {"__key__": "01029.wav", "audio": b"1029"}


def test_kinds_that_differ_ask_which_are_meant(tmp_path):
    write(tmp_path / "a" / "1.jpg", b"j")
    write(tmp_path / "a" / "1.txt", b"t")
    with pytest.raises(DataError, match=r"several kinds: '\.jpg', '\.txt'; name those"):
        len(sw.files(tmp_path))
    assert [s["image"] for s in sw.files(tmp_path, suffixes=[".JPG"])] == [b"j"]
    assert [s["data"] for s in sw.files(tmp_path, field="data")] == [b"j", b"t"]
    with pytest.raises(TypeError, match="give a sequence"):
        sw.files(tmp_path, suffixes=".jpg")


def test_what_is_no_folder_of_files_is_refused(tmp_path):
    with pytest.raises(MissingShardError, match="no file in the directory"):
        len(sw.files(tmp_path))
    write(tmp_path / "t" / "a" / "1.jpg")
    write(tmp_path / "t" / "2.jpg")
    with pytest.raises(DataError, match=r"1 files beside the 1 directories of classes"):
        len(sw.files(tmp_path / "t"))
    with pytest.raises(StorageError, match="no directory"):
        len(sw.files(tmp_path / "missing"))
    with pytest.raises(DataError, match="neither a directory nor a list"):
        len(sw.files(tmp_path / "t" / "2.jpg"))
    with pytest.raises(StorageError, match="remote directories are not listed"):
        len(sw.files("s3://bucket/images"))
    with pytest.raises(ValueError, match="root and path are for lists"):
        sw.files(tmp_path, root=tmp_path)


def test_links_to_files_and_classes_are_followed_and_others_refused(tmp_path):
    write(tmp_path / "elsewhere" / "1.jpg", b"1")
    root = tmp_path / "root"
    root.mkdir()
    os.symlink(tmp_path / "elsewhere", root / "a")
    write(root / "b" / "2.jpg")
    os.symlink(tmp_path / "elsewhere" / "1.jpg", root / "b" / "3.jpg")
    assert [s["__key__"] for s in sw.files(root)] == ["a/1.jpg", "b/2.jpg", "b/3.jpg"]
    os.symlink(tmp_path / "nowhere", root / "b" / "4.jpg")
    with pytest.raises(MissingShardError, match="leads nowhere"):
        len(sw.files(root))
    os.remove(root / "b" / "4.jpg")
    os.symlink(root, root / "b" / "deeper")
    with pytest.raises(DataError, match="only classes may be links"):
        len(sw.files(root))


def test_a_file_that_went_away_is_noticed(tmp_path):
    path = write(tmp_path / "a" / "1.jpg")
    ds = sw.files(tmp_path)
    assert len(ds) == 1
    os.remove(path)
    with pytest.raises(MissingShardError) as caught:
        ds.load(np.array([0]))
    assert (caught.value.url, caught.value.key, caught.value.index) == (str(path), "a/1.jpg", 0)


def test_other_names_are_other_data(tmp_path):
    write(tmp_path / "x" / "a" / "1.jpg")
    write(tmp_path / "y" / "a" / "2.jpg")
    one, other = sw.files(tmp_path / "x"), sw.files(tmp_path / "y")
    assert one.fingerprint != other.fingerprint
    assert pickle.loads(pickle.dumps(one)).fingerprint == one.fingerprint


def test_names_that_are_no_utf_8_are_read(tmp_path):
    (tmp_path / "a").mkdir()
    with open(os.fsencode(tmp_path / "a") + b"/\xff.jpg", "wb") as file:
        file.write(b"data")
    assert sw.files(tmp_path)[0]["image"] == b"data"


# Lists.


def lists(tmp_path, text, name="list.csv"):
    return write(tmp_path / name, text.encode() if isinstance(text, str) else text)


def test_the_columns_of_a_list_are_fields(tmp_path):
    for i in range(3):
        write(tmp_path / "img" / f"{i}.png", b"%d" % i)
    path = lists(
        tmp_path,
        'label,file_name,score,note\n0,img/2.png,0.5,"a, b"\n1,img/0.png,1,\n1,./img/1.png,2e0,c\n',
    )
    ds = sw.files(path)
    assert ds.fields == ("image", "label", "score", "note")
    assert ds[0] == {
        "__key__": "img/2.png",
        "image": b"2",
        "label": 0,
        "score": 0.5,
        "note": "a, b",
    }
    assert "note" not in ds[1]
    batch = ds.load(np.array([2, 1, 0]))
    assert (batch["label"].dtype, batch["label"].tolist()) == (np.int64, [1, 1, 0])
    assert (batch["score"].dtype, batch["score"].tolist()) == (np.float64, [2, 1, 0.5])
    assert batch["note"] == ["c", None, "a, b"]
    assert ds.select("label").layout() == {"label": ((), np.dtype(np.int64))}
    check_source(ds.source)


def test_lines_of_json_keep_their_types(tmp_path):
    write(tmp_path / "a.txt", b"A")
    rows = [
        {"path": "a.txt", "n": 1, "tags": ["x"], "flag": True},
        {"path": "a.txt", "n": 2, "tags": [], "flag": False, "more": "m"},
    ]
    path = lists(tmp_path, "\n\n".join(map(json.dumps, rows)) + "\n", "list.jsonl")
    ds = sw.files(path)
    assert ds[0] == {"__key__": "a.txt", "text": b"A", "n": 1, "tags": ["x"], "flag": True}
    assert ds[1]["more"] == "m"
    assert ds.load(np.arange(2))["flag"].dtype == np.bool_


@pytest.mark.parametrize(
    "name", ["../outside.jpg", "a/../../outside.jpg", "/etc/passwd", "..", "s3://b/x.jpg"]
)
def test_a_path_that_leaves_the_directory_is_refused(tmp_path, name):
    write(tmp_path / "outside.jpg")
    path = lists(tmp_path / "in", f"path\n{name}\n")
    with pytest.raises(DataError, match="does not lie in") as caught:
        len(sw.files(path))
    assert (caught.value.url, caught.value.index) == (str(path), 0)


def test_a_directory_that_the_user_names_may_hold_the_files(tmp_path):
    file = write(tmp_path / "outside" / "1.jpg", b"1")
    path = lists(tmp_path / "in", f"path\n{file}\n1.jpg\n")
    assert [s["image"] for s in sw.files(path, root=tmp_path / "outside")] == [b"1", b"1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "none of the columns path, file_name, .* are 'x', 'y'"),
        ("a.csv", "path,label\n", "it lists no files"),
        ("a.jsonl", "", "it lists no files"),
        ("a.csv", "path,path\na,b\n", "name the columns, each once"),
        ("a.csv", "path,x\na.jpg\n", "line 2 has 1 values for 2 columns"),
        ("a.csv", 'path\n"a.jpg', "is no CSV"),
        ("a.csv", "path,image\na.jpg,1\n", "name another one by field="),
        ("a.csv", "path\na.jpg\nb.txt\n", "several kinds"),
        ("a.csv", b"path\n\xff.jpg\n", "is no UTF-8"),
        ("a.jsonl", '{"path": "a.jpg"}\n{"path"\n', "line 2 is no JSON"),
        ("a.jsonl", '["a.jpg"]\n', "line 1 is no JSON object"),
        ("a.jsonl", '{"path": 3}\n', "row 0 has no path, but 3"),
        ("a.jsonl", '{"path": "a.jpg"}\n{"x": 1}\n', "row 1 has no path, but None"),
        ("a.jsonl", '{"path": "a\\u0000b.jpg"}', "row 0 has the path .*, which holds a NUL"),
        ("a.jsonl", '{"path": "\\ud800.jpg"}', "row 0 has the path .*, which holds a lone surr"),
        ("a.jsonl", f'{{"path": "0.txt", "x": {"[" * 100_000}', "line 1 is nested too deep"),
    ],
)
def test_a_list_that_can_not_be_read_says_why(tmp_path, name, text, message):
    path = lists(tmp_path, text, name)
    with pytest.raises(DataError, match=message) as caught:
        len(sw.files(path))
    assert caught.value.url == str(path)


def test_the_column_of_paths_can_be_named(tmp_path):
    write(tmp_path / "1.jpg", b"1")
    path = lists(tmp_path, "path\tpicture\nother\t1.jpg\n", "list.tsv")
    assert sw.files(path, path="picture")[0] == {
        "__key__": "1.jpg",
        "image": b"1",
        "path": "other",
    }
    with pytest.raises(DataError, match="no column 'photo'"):
        len(sw.files(path, path="photo"))
    with pytest.raises(DataError, match=r"files that end in '\.jpg'"):
        len(sw.files(path, path="picture", suffixes=[".png"]))
    with pytest.raises(ValueError, match="no field 'x'"):
        FilesSource(path, path="picture").read(np.array([0]), ("x",))
