"""Data that the packages themselves have written: every sample, local and remote, and damage."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import shardwise as sw
from shardwise.testing import check_source
from tests.support.foreign_samples import (
    NUM_SAMPLES,
    litdata_nested,
    litdata_row,
    litdata_sample,
    mds_sample,
    tfrecord_sample,
)
from tests.support.servers import S3Server

DATA = Path(__file__).parent / "data"
MDS = ["mds", "mds-zstd", "mds-gz", "mds-br", "mds-bz2", "mds-snappy"]
LITDATA = ["litdata", "litdata-chunk", "litdata-batch", "litdata-sample",
           "litdata-rows", "litdata-rows-zstd", "litdata-nested"]  # fmt: skip
TFRECORD = {
    "image": "bytes", "label": "int64", "score": "float32", "boxes": "float32[]", "ids": "int64[]",
    "rare": "bytes",
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy that a test may damage, and in which indexes may be written."""
    return Path(shutil.copytree(DATA, tmp_path / "data"))


def open_any(root: str, name: str, **options) -> sw.Dataset:
    if name.startswith("mds"):
        return sw.mds(f"{root}/{name}", **options)
    if name.startswith("litdata"):
        return sw.litdata(f"{root}/{name}", **options)
    urls = [f"{root}/tfrecord/{each}.tfrecord" for each in "ab"]
    return sw.tfrecord(urls, features=TFRECORD, **options)


def expected(name: str) -> list[dict]:
    if name.startswith("mds"):
        samples = [mds_sample(i) for i in range(NUM_SAMPLES)]
        return [s | {"pickled": pickle.dumps(s["pickled"])} for s in samples]
    if name.startswith("litdata-rows"):
        return [litdata_row(i) for i in range(NUM_SAMPLES)]
    if name == "litdata-nested":
        samples = [litdata_nested(i) for i in range(NUM_SAMPLES)]
        # As in tables, a value of None is a field that the sample lacks.
        return [{k: value for k, value in s.items() if value is not None} for s in samples]
    make = litdata_sample if name.startswith("litdata") else tfrecord_sample
    return [make(i) for i in range(NUM_SAMPLES)]


def assert_equal(found: dict, sample: dict) -> None:
    assert set(found) == {"__key__", *sample}
    for field, value in sample.items():
        if isinstance(value, np.ndarray):
            assert found[field].dtype == value.dtype
            assert np.array_equal(found[field], value)
        elif isinstance(value, list | dict):
            assert repr(found[field]) == repr(value)  # True is no 1, and 1.0 none
        else:
            assert found[field] == value, field


@pytest.mark.parametrize("name", [*MDS, *LITDATA, "tfrecord"])
def test_what_the_package_wrote_is_read_and_keeps_the_protocol(data, name):
    ds = open_any(str(data), name)
    check_source(ds.source)
    samples = expected(name)
    assert len(ds) == NUM_SAMPLES
    for i, found in enumerate(ds):
        assert_equal(found, samples[i])
        assert_equal(ds[i], samples[i])


@pytest.mark.parametrize("name", ["mds", "mds-zstd", "litdata", "litdata-batch", "tfrecord"])
def test_a_store_gives_the_same_by_a_shuffled_loader(s3: S3Server, data, tmp_path, name):
    prefix = f"foreign-{name}"
    for path in (data / name).iterdir():
        url = s3.put(f"{prefix}/{name}/{path.name}", path.read_bytes())
    root = url.rsplit("/", 2)[0]
    options = {"index": tmp_path / "index"} if name == "tfrecord" else {}
    ds = open_any(root, name, storage=s3.config, cache=tmp_path / "cache", **options)
    key = "label" if name == "tfrecord" else "id"
    samples = expected(name)
    with sw.DataLoader(
        ds.select(key), batch_size=4, shuffle=True, rank=0, world_size=1, remainder="uneven",
        output="numpy",
    ) as loader:  # fmt: skip
        found = [int(value) for batch in loader for value in batch[key]]
    assert sorted(found) == sorted(sample[key] for sample in samples)
    assert ds.fingerprint == open_any(str(data), name).fingerprint


def test_mds_streams_stand_behind_one_another(data):
    ds = sw.mds([data / "mds", data / "mds-zstd" / "index.json"])
    assert [sample["id"] for sample in ds] == [*range(NUM_SAMPLES)] * 2
    (data / "linked").symlink_to("mds")
    for again in ("./mds", "mds/index.json", "linked"):
        with pytest.raises(ValueError, match="is named twice"):
            sw.mds([str(data / "mds"), f"{data}/{again}"])


def test_columns_of_numbers_are_arrays_of_a_batch(data):
    loader = sw.DataLoader(sw.mds(data / "mds"), batch_size=4, rank=0, world_size=1)
    batch = next(iter(loader))
    assert batch["id"].tolist() == [0, 1, 2, 3]
    assert batch["fixed"].shape == (4, 2, 3)
    loader = sw.DataLoader(sw.litdata(data / "litdata"), batch_size=4, rank=0, world_size=1)
    batch = next(iter(loader))
    assert batch["even"].tolist() == [True, False, True, False]
    assert batch["matrix"].shape == (4, 2, 3)


def test_pickles_stay_bytes_until_a_decoder_is_named(data):
    ds = sw.mds(data / "mds")
    assert type(ds[3]["pickled"]) is bytes
    assert ds.decode(pickled=pickle.loads)[3]["pickled"] == {"i": 3}


def test_codecs_get_what_is_stored(data):
    ds = sw.mds(data / "mds").decode(meta=sw.json(), text=sw.text())
    assert (ds[2]["meta"], ds[2]["text"]) == (mds_sample(2)["meta"], "sample 2 é")
    nested = sw.litdata(data / "litdata").decode(text=sw.text(), nested=lambda value: value[0])
    assert (nested[2]["text"], nested[2]["nested"]) == ("sample 2 é", 2)


def test_a_compressed_shard_that_was_decompressed_in_place_is_read(data):
    for path in (data / "mds-zstd").glob("*.zstd"):
        content = pa.CompressedInputStream(pa.BufferReader(path.read_bytes()), "zstd").read()
        path.with_suffix("").write_bytes(content)
        path.unlink()
    assert [sample["id"] for sample in sw.mds(data / "mds-zstd")] == [*range(NUM_SAMPLES)]


def damaged(path: Path, change) -> str:
    data = bytearray(path.read_bytes())
    path.write_bytes(bytes(change(data)))
    return str(path)


def flip(at: int):
    def change(data: bytearray) -> bytearray:
        data[at] ^= 0x55
        return data

    return change


def cut(data: bytearray) -> bytearray:
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("mds/shard.00000.mds", cut, "was it cut"),
        ("mds/shard.00000.mds", flip(0), "another shard"),
        ("mds/shard.00000.mds", flip(6), "offset of record"),
        ("mds-zstd/shard.00000.mds.zstd", cut, "sha1"),
        ("mds-zstd/shard.00000.mds.zstd", flip(40), "sha1"),
        ("litdata/chunk-0-0.bin", cut, "was it cut"),
        ("litdata/chunk-0-0.bin", flip(1), "another shard"),
        ("litdata-chunk/chunk-0-0.zstd.bin", cut, "damaged|can't hold|offset"),
        ("litdata-batch/chunk-0-0.bin", cut, "ends at byte|was the chunk cut"),
        ("litdata-batch/chunk-0-0.bin", flip(2), "LitData chunk"),
        ("litdata-sample/chunk-0-0.bin", flip(40), "damaged"),
        ("litdata-rows/chunk-0-0.bin", cut, "was it cut"),
        ("litdata-rows/chunk-0-0.bin", flip(-12), "Arrow rows"),
        ("litdata-rows/chunk-0-0.bin", flip(-20), "Arrow rows"),
        ("tfrecord/a.tfrecord", cut, "was it cut"),
        ("tfrecord/a.tfrecord", flip(2), "no TFRecord"),
        ("tfrecord/a.tfrecord", flip(30), "checksum differs"),
    ],
)
def test_damage_names_the_file(data, file, change, message):
    url = damaged(data / file, change)
    with pytest.raises(sw.DataError, match=message) as caught:
        list(open_any(str(data), file.partition("/")[0]))
    assert caught.value.url == url


def test_a_damaged_record_names_its_place(data):
    path = data / "tfrecord" / "b.tfrecord"
    size = path.stat().st_size
    damaged(path, flip(size - 20))
    ds = open_any(str(data), "tfrecord")
    assert ds[9]["label"] == 4
    with pytest.raises(sw.DataError, match="checksum differs") as caught:
        ds[10]
    assert (caught.value.key, caught.value.index) == ("b.tfrecord:4", 10)
    assert 0 < caught.value.offset < size


def test_a_damaged_length_in_the_middle_names_its_offset(data):
    ds = open_any(str(data), "tfrecord")
    starts = ds.source._shard(0).starts
    shutil.rmtree(data)
    shutil.copytree(DATA, data)
    damaged(data / "tfrecord" / "a.tfrecord", flip(int(starts[3]) - 5))
    with pytest.raises(sw.DataError, match="length of a record is damaged") as caught:
        len(open_any(str(data), "tfrecord"))
    assert caught.value.offset == starts[3] - 12


def rewrite(path: Path, change) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def shape(document, text: str) -> None:
    for shard in document["shards"]:
        place = shard["column_names"].index("fixed")
        shard["column_encodings"][place] = f"ndarray:int8:{text}"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mds", lambda d: d.update(version=1), "version 1"),
        ("mds", lambda d: d["shards"][0].update(samples=-1), "no count"),
        ("mds", lambda d: d["shards"][0].update(samples=900), "can't hold|another shard"),
        ("mds", lambda d: d["shards"][0]["raw_data"].update(basename="../x"), "beside the index"),
        ("mds", lambda d: d["shards"][0].update(format="json"), "'json'"),
        ("mds", lambda d: d["shards"][1].update(column_names=[*"abcdefghijk"]), "sw.concat"),
        ("mds", lambda d: d["shards"][0].pop("raw_data"), "raw_data"),
        ("litdata", lambda d: d.pop("config"), "no index of LitData"),
        ("litdata", lambda d: d.update(config=0, version=2, shards=[]), "sw.mds reads this one"),
        ("mds", lambda d: d.update(config={}, chunks=[], version=1), "sw.litdata reads this one"),
        ("litdata", lambda d: d["config"].update(data_spec="[1"), "no tree"),
        ("litdata", lambda d: d["config"].update(data_spec="[2, {}]"), "version 2"),
        ("litdata", lambda d: d["config"].update(data_format=["int"]), "leaves"),
        ("litdata", lambda d: d["config"].update(encryption={"a": 1}), "encrypted"),
        ("litdata", lambda d: d["config"].update(item_loader="TokensLoader"), "sw.tokens reads"),
        ("litdata", lambda d: d["config"]["data_format"].__setitem__(0, "mine"), "your own"),
        ("litdata", lambda d: d["chunks"][0].update(filename="/etc/passwd"), "file name"),
        ("mds", lambda d: d["shards"].append(d["shards"][0]), "00000.mds' is named twice"),
        ("mds", lambda d: d["shards"][1]["raw_data"].update(basename="./shard.00000.mds"), "twice"),
        ("mds-gz", lambda d: d["shards"][1].update(zip_data=d["shards"][0]["zip_data"]), "twice"),
        ("litdata", lambda d: d["chunks"].append(d["chunks"][0]), "0-0.bin' is named twice"),
        ("mds", lambda d: d["shards"][0]["raw_data"].update(basename="a\ud800"), "surrogate"),
        ("litdata", lambda d: d["chunks"][0].update(filename="\ud800"), "surrogate"),
        ("mds", lambda d: d["shards"].__setitem__(0, []), "shard 0 of the index"),
        ("litdata", lambda d: d["config"].update(data_spec="[1, " + "[" * 5000), "no tree"),
        ("mds", lambda d: shape(d, "-1,-1"), "field 'fixed'"),
        ("mds", lambda d: shape(d, "3,-1"), "field 'fixed'"),
        ("mds", lambda d: shape(d, "1" + ",1" * 70), "field 'fixed'"),
        ("mds", lambda d: shape(d, "9" * 30), "field 'fixed'"),
        ("mds", lambda d: shape(d, f"{2**62},4"), "field 'fixed'"),
    ],
)
def test_an_index_that_cannot_be_used_says_why(data, name, change, message):
    rewrite(data / name / "index.json", change)
    with pytest.raises(sw.DataError, match=message):
        list(open_any(str(data), name))


@pytest.mark.parametrize(
    ("name", "shard"), [("mds", "shard.{:05}.mds"), ("litdata", "chunk-0-{}.bin")]
)
def test_an_index_that_names_a_file_and_a_link_to_it_is_refused(data, name, shard):
    first, second = (data / name / shard.format(number) for number in (0, 1))
    second.unlink()
    second.symlink_to(first.name)
    with pytest.raises(sw.DataError, match="twice"):
        list(open_any(str(data), name))


def test_frames_that_promise_more_than_their_samples_are_not_decompressed(data, monkeypatch):
    path = data / "litdata-batch" / "chunk-0-0.bin"
    content = bytearray(path.read_bytes())
    # Behind 24 bytes, the offsets of 4 samples and the frame's first 20 bytes: its length.
    content[64:68] = (1 << 31).to_bytes(4, "little")
    path.write_bytes(content)
    monkeypatch.setattr("shardwise.extensions.formats.litdata.frames.unzip", None)
    with pytest.raises(sw.DataError, match="offsets of its samples are damaged"):
        sw.litdata(data / "litdata-batch")[0]


def test_stored_pixels_are_no_file_for_an_image_decoder(tmp_path):
    picture = struct.pack("<3I", 2, 1, 1) + b"L" + bytes([7, 9])
    record = struct.pack("<I", len(picture)) + picture
    shard = struct.pack("<3I", 1, 12, 12 + len(record)) + record
    (tmp_path / "0.mds").write_bytes(shard)
    facts = {"version": 2, "format": "mds", "samples": 1, "compression": None, "hashes": [],
             "column_names": ["x"], "column_encodings": ["pil"], "column_sizes": [None],
             "raw_data": {"basename": "0.mds", "bytes": len(shard), "hashes": {}}}  # fmt: skip
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [facts]}))
    ds = sw.mds(tmp_path)
    assert ds[0]["x"].tolist() == [[7, 9]]
    for size in (None, 8):
        with pytest.raises(sw.DataError, match=r"pixels, an array \[1, 2\], .* in a map\(\)"):
            ds.decode(x=sw.image(size=size))[0]


@pytest.mark.parametrize("opened", [sw.mds, sw.litdata])
def test_what_is_no_index_is_refused(tmp_path, opened):
    with pytest.raises(sw.MissingShardError):
        len(opened(tmp_path))
    for text in ("", "[]", "{}", "[" * 100_000, '{"version": 2, "shards": 7}'):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(sw.DataError, match="index"):
            len(opened(tmp_path))


def test_a_missing_shard_is_an_error_and_no_short_epoch(data):
    (data / "mds" / "shard.00001.mds").unlink()
    with pytest.raises(sw.MissingShardError):
        list(sw.mds(data / "mds"))


def test_all_features_are_found_in_the_first_record(data):
    ds = sw.tfrecord(data / "tfrecord")
    assert set(ds.fields) == set(TFRECORD)
    assert_equal(ds[8], tfrecord_sample(8))
    names = sw.tfrecord(data / "tfrecord", features=["label", "image"])
    assert names.fields == ("label", "image")


@pytest.mark.parametrize(
    ("features", "message"),
    [({"boxes": "float32"}, r"boxes\[?\]?.*8 values"), ({"label": "bytes"}, "is int64")],
)
def test_a_feature_of_another_kind_says_so(data, features, message):
    with pytest.raises(sw.DataError, match=message):
        list(sw.tfrecord(data / "tfrecord", features=features))


@pytest.mark.parametrize("features", [{"a": "int32"}, "label", {"a": 1}, 7, ["a", "a"], [1]])
def test_features_that_mean_nothing_are_refused(data, features):
    with pytest.raises((TypeError, ValueError)):
        sw.tfrecord(data / "tfrecord", features=features)


def test_a_feature_that_a_record_lacks_is_a_field_that_the_sample_lacks(data):
    ds = sw.tfrecord(data / "tfrecord", features={"rare": "bytes", "never": "int64?"})
    assert set(ds[1]) == {"__key__"}
    with pytest.raises(sw.DataError, match="no feature 'never'"):
        len(sw.tfrecord(data / "tfrecord", features=["never"]).fields)


def test_an_index_file_is_made_once_and_only_for_its_file(data, monkeypatch):
    from shardwise.extensions.formats.tfrecord import scan

    len(sw.tfrecord(data / "tfrecord"))
    index = data / "tfrecord" / "a.tfrecord.tfi"
    made = index.read_bytes()
    monkeypatch.setattr(scan, "_scan", lambda *_: pytest.fail("scanned again"))
    assert len(sw.tfrecord(data / "tfrecord")) == NUM_SAMPLES
    monkeypatch.undo()
    # A damaged one is made anew, and so is one of another file.
    index.write_bytes(made[:-9])
    assert len(sw.tfrecord(data / "tfrecord")) == NUM_SAMPLES
    assert index.read_bytes() == made
    shutil.copy(data / "tfrecord" / "b.tfrecord", data / "tfrecord" / "a.tfrecord")
    assert sw.tfrecord(data / "tfrecord", features=["label"])[0]["label"] == 1


def test_empty_and_compressed_files(tmp_path):
    import gzip

    (tmp_path / "a.tfrecord").write_bytes(b"")
    ds = sw.tfrecord(tmp_path / "a.tfrecord")
    assert (len(ds), ds.fields) == (0, ("record",))
    (tmp_path / "b.tfrecord").write_bytes(gzip.compress(b"x" * 100))
    for written, named in (
        (gzip.compress(b"x" * 100), "gzip: unpack it"),
        (zlib.compress(b"x" * 100), "zlib: decompress it"),
        (b"PAR1" + bytes(99), r"a Parquet file: sw\.parquet opens it"),
    ):
        (tmp_path / "b.tfrecord").write_bytes(written)
        with pytest.raises(sw.DataError, match=f"no TFRecord file, but {named}"):
            len(sw.tfrecord(tmp_path / "b.tfrecord"))
