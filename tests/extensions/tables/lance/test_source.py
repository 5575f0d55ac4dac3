"""Lance tables as a source: the contract, versions, filters, deletions, what the columns become."""

import pickle
import shutil
from datetime import timedelta

import lance
import numpy as np
import pyarrow as pa
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, StorageError
from shardwise.extensions.tables.lance.source import LanceSource
from shardwise.testing import check_source
from tests.support.lance_tables import NUM_ROWS, make_table, plenty, row_values
from tests.support.torchrun import run_program

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("tables") / "rows.lance")


def ids_of(ds):
    return [sample["id"] for sample in ds]


def expected(rows):
    """The samples of these rows; `rows` has (fragment, row among its live ones, number)."""
    return [{"__key__": f"{f}:{r}", **row_values(i)} for f, r, i in rows]


ALL = [(i // 100, i % 100, i) for i in range(NUM_ROWS)]


def test_it_keeps_what_a_source_keeps(table):
    source = LanceSource(table)
    assert source.manifest.sizes.tolist() == [100] * 10 + [3]
    check_source(source, expected=expected(ALL))


@pytest.mark.parametrize("options", [{"enable_stable_row_ids": True}, {}])
def test_deleted_rows_are_no_samples(tmp_path, options):
    path = make_table(tmp_path / "t.lance", **options)
    lance.dataset(path).delete("id % 10 = 3")
    lance.dataset(path).delete("id >= 200 AND id < 299")
    source = LanceSource(path)
    live = [i for i in range(NUM_ROWS) if i % 10 != 3 and not 200 <= i < 299]
    assert source.manifest.sizes.tolist() == [90, 90, 1, *[90] * 7, 3]
    places = np.cumsum([0, *source.manifest.sizes])
    shard = np.searchsorted(places, np.arange(len(live)), side="right") - 1
    rows = [(s, k - places[s], i) for k, (s, i) in enumerate(zip(shard, live, strict=True))]
    check_source(source, expected=expected(rows))


@pytest.mark.parametrize("deleted", [False, True])
def test_a_filter_is_a_selection_with_empty_shards(tmp_path, deleted):
    path = make_table(tmp_path / "t.lance")
    if deleted:
        lance.dataset(path).delete("id < 350")
    source = LanceSource(path, condition="mod7 = 2 AND id > 250 AND id < 610")
    wanted = [i for i in range(251, 610) if i % 7 == 2 and not (deleted and i < 350)]
    assert source.manifest.num_samples == len(wanted)
    assert 0 in source.manifest.sizes
    assert source.read(np.arange(len(wanted))).fields["id"].tolist() == wanted
    check_source(source)


def test_a_filter_that_an_index_answers_gives_rows_in_storage_order(tmp_path):
    path = make_table(tmp_path / "t.lance")
    lance.dataset(path).create_scalar_index("mod7", "BITMAP")
    ds = sw.lance(path, filter="mod7 IN (5, 1)")
    assert ids_of(ds) == [i for i in range(NUM_ROWS) if i % 7 in (1, 5)]


def test_a_filter_without_a_match_is_an_empty_dataset(table):
    ds = sw.lance(table, filter="id < 0")
    assert len(ds) == 0
    assert list(ds) == []


def test_an_empty_table_is_an_empty_dataset(tmp_path):
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), str(tmp_path / "t.lance"))
    check_source(LanceSource(str(tmp_path / "t.lance")))


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_older_and_newer_files_give_the_same(tmp_path, version):
    path = make_table(tmp_path / "t.lance", num_rows=120, data_storage_version=version)
    check_source(LanceSource(path), expected=expected(ALL[:120]))


BLOBS = [b"aa", None, b"", bytes(range(256)) * 400, b"z"]


def blob_table(path, kind):
    if kind == "v1":
        metadata = {"lance-encoding:blob": "true"}
        field = pa.field("img", pa.large_binary(), metadata=metadata)
        column, version = pa.array(BLOBS, pa.large_binary()), "2.1"
    else:
        field = lance.blob_field("img")
        column, version = lance.blob_array(BLOBS), "2.2"
    schema = pa.schema([pa.field("id", pa.int64()), field])
    data = pa.table({"id": list(range(5)), "img": column}, schema=schema)
    lance.write_dataset(data, str(path), data_storage_version=version, max_rows_per_file=2)
    return str(path)


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_blobs_come_as_bytes(tmp_path, kind):
    path = blob_table(tmp_path / "t.lance", kind)
    keys = ["0:0", "0:1", "1:0", "1:1", "2:0"]
    rows = [
        {"__key__": k, "id": i, "img": b} for i, (k, b) in enumerate(zip(keys, BLOBS, strict=True))
    ]
    source = LanceSource(path)
    assert source.traits.value_fields.intersection(source.fields) == {"id"}
    check_source(source, expected=rows)
    found = sw.lance(path, filter="id > 2", columns=("img",)).decode(img=len)
    assert [sample["img"] for sample in found] == [256 * 400, 1]


def test_nulls_are_fields_that_a_sample_lacks(tmp_path):
    data = {
        "id": [0, 1, 2],
        "n": [1, None, 3],
        "s": ["a", None, ""],
        "st": [{"x": 1}, None, {"x": 2}],
    }
    lance.write_dataset(pa.table(data), str(tmp_path / "t.lance"))
    source = LanceSource(str(tmp_path / "t.lance"))
    check_source(source)
    assert sw.Dataset(source)[1] == {"__key__": "0:1", "id": 1}
    with pytest.raises(DataError, match=r"no value of 'n'.*fill=.*key '0:1'"):
        sw.Dataset(source).load(np.arange(3))
    filled = sw.lance(tmp_path / "t.lance", fill={"n": -1, "st.x": 7, "s": "?"})
    assert filled[1] == {"__key__": "0:1", "id": 1, "n": -1, "s": "?", "st.x": 7}
    with pytest.raises(ValueError, match="fill= names 'x'"):
        sw.lance(tmp_path / "t.lance", fill={"x": 0})[1]


def test_lances_own_numbers_of_rows_are_columns_that_can_be_named(tmp_path):
    path = tmp_path / "t.lance"
    image = [{"bytes": bytes([i]), "path": f"{i}.png"} for i in range(20)]
    data = pa.table({"id": range(20), "image": image})
    lance.write_dataset(data, str(path), max_rows_per_file=8)
    lance.dataset(str(path)).delete("id % 5 = 1")
    ds = sw.lance(path)
    assert ds.fields == ("id", "image")
    assert ds[3] == {"__key__": "0:3", "id": 4, "image": b"\x04"}
    scanned = lance.dataset(str(path)).scanner(["id"], with_row_id=True, with_row_address=True)
    wanted = scanned.to_table().to_pylist()
    for named in (
        sw.lance(path, columns=["id", "_rowid", "_rowaddr", "image.path"]),
        ds.select("id", "_rowid", "_rowaddr", "image.path"),
    ):
        assert named.layout()["_rowid"] == ((), np.dtype(np.uint64))
        for sample, row in zip(named, wanted, strict=True):
            assert {name: sample[name] for name in row} == row
            assert sample["image.path"] == f"{row['id']}.png"


def test_a_column_of_keys_names_the_samples(tmp_path):
    data = pa.table({"__key__": ["a", "b"], "x": [1, 2]})
    lance.write_dataset(data, str(tmp_path / "t.lance"))
    source = LanceSource(str(tmp_path / "t.lance"))
    assert source.fields == ("x",)
    check_source(source, expected=[{"__key__": "a", "x": 1}, {"__key__": "b", "x": 2}])


def test_parts_of_structs_whose_names_have_dots_are_read(tmp_path):
    data = pa.table({"my col": [1, 2], "s": [{"a.b": 1, "c": {"d": 5}}, {"a.b": 2, "c": {"d": 6}}]})
    lance.write_dataset(data, str(tmp_path / "t.lance"))
    source = LanceSource(str(tmp_path / "t.lance"))
    assert source.fields == ("my col", "s.a.b", "s.c.d")
    check_source(source)
    assert sw.Dataset(source)[1] == {"__key__": "0:1", "my col": 2, "s.a.b": 2, "s.c.d": 6}


TYPES = {
    "dictionary": pa.array([f"w{i // 50}" for i in range(130)]).dictionary_encode(),
    "bool": pa.array([i % 2 == 0 for i in range(130)]),
    "half": pa.array(np.arange(130, dtype=np.float16)),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(
        np.arange(130 * 6, dtype=np.float32).reshape(130, 2, 3)
    ),
    "lists": pa.array([list(range(i % 4)) for i in range(130)]),
    "texts": pa.array([[f"a{j}" for j in range(i % 3)] for i in range(130)]),
    "bytes4": pa.array([i.to_bytes(4, "little") for i in range(130)], pa.binary(4)),
    "time": pa.array(range(130), pa.timestamp("us")),
    "nothing": pa.nulls(130),
}


@pytest.mark.parametrize("name", TYPES)
def test_columns_of_many_types_are_what_they_were_wherever_they_are_read_from(tmp_path, name):
    lance.write_dataset(
        pa.table({"x": TYPES[name]}), str(tmp_path / "t.lance"), max_rows_per_file=50
    )
    source = LanceSource(str(tmp_path / "t.lance"))
    ids = np.random.default_rng(0).permutation(130)
    source.read(ids[:10])  # the next read goes through blocks
    found = source.read(ids).fields["x"]
    wanted = TYPES[name]
    if name == "tensor":
        assert np.array_equal(found, wanted.to_numpy_ndarray()[ids])
    elif name == "time":
        assert found.tolist() == ids.tolist()
    else:
        values = [bytes(v) if isinstance(v, memoryview) else v for v in found]
        plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
        assert plain == wanted.take(pa.array(ids)).to_pylist()
    assert len(source.read(ids[:0]).fields["x"]) == 0


def test_only_the_columns_asked_for_are_read(table):
    source = LanceSource(table)
    ids = np.arange(50)
    assert source.read(ids, ("id",)).num_bytes == 50 * 8
    assert source.read(ids, ()).num_bytes == 0
    assert sw.lance(table, columns=("meta", "id")).fields == ("meta.width", "meta.name", "id")
    assert sw.lance(table, columns=("meta.name",))[7] == {"__key__": "0:7", "meta.name": "n7"}


# Versions


def test_the_version_stays_whatever_happens_to_the_table(tmp_path):
    path = make_table(tmp_path / "t.lance", num_rows=250)
    ds = sw.lance(path)
    fingerprint = ds.fingerprint
    copy = pickle.dumps(ds)
    make_table(path, num_rows=40, mode="append")
    lance.dataset(path).delete("id < 100")
    lance.dataset(path).optimize.compact_files()
    assert ids_of(ds) == list(range(250))
    assert ids_of(pickle.loads(copy)) == list(range(250))
    assert ids_of(sw.lance(path, version=1)) == list(range(250))
    assert sw.lance(path, version=1).fingerprint == fingerprint
    assert len(sw.lance(path)) == 150
    assert sw.lance(path).fingerprint != fingerprint


def test_a_tag_is_a_version(tmp_path):
    path = make_table(tmp_path / "t.lance", num_rows=10)
    make_table(path, num_rows=5, mode="append")
    lance.dataset(path).tags.create("train", 1)
    ds = sw.lance(path, version="train")
    assert len(ds) == 10
    assert ds.fingerprint == sw.lance(path, version=1).fingerprint
    with pytest.raises(sw.MissingShardError, match=r"are 1, 2; its tags are 'train'"):
        len(sw.lance(path, version="trian"))
    lance.dataset(path).tags.delete("train")
    with pytest.raises(sw.MissingShardError, match="it has no tags"):
        len(sw.lance(path, version="train"))


def test_a_copy_is_the_same_table_under_the_same_name_only(tmp_path):
    path = make_table(tmp_path / "t.lance", num_rows=10)
    same = shutil.copytree(path, tmp_path / "elsewhere" / "t.lance")
    other = shutil.copytree(path, tmp_path / "u.lance")
    assert sw.lance(same).fingerprint == sw.lance(path).fingerprint
    assert sw.lance(other).fingerprint != sw.lance(path).fingerprint


def test_a_parquet_file_names_what_reads_it(tmp_path):
    path = tmp_path / "t.parquet"
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(sw.MissingShardError, match=r"sw\.parquet reads it"):
        len(sw.lance(path))


def test_the_fingerprint_tells_filters_apart(table):
    # As many rows of each fragment.
    filters = (None, "id % 10 = 4", "id % 10 = 5")
    assert len({sw.lance(table, filter=kept).fingerprint for kept in filters}) == 3


def test_rows_of_a_version_that_was_cleaned_up_are_a_clear_error(tmp_path):
    path = make_table(tmp_path / "t.lance")
    ds = sw.lance(path, columns=("id",), memory_bytes=0)
    assert ds[3]["id"] == 3
    copy = pickle.loads(pickle.dumps(ds))
    make_table(path, num_rows=10, mode="overwrite")
    assert ds[4]["id"] == 4
    lance.dataset(path).cleanup_old_versions(older_than=timedelta(0))
    with pytest.raises(StorageError, match="no version 1 of the table: there are 2; it was clean"):
        ds[900]
    with pytest.raises(StorageError, match=r"planned is not there any more.*there are 2"):
        copy[900]


def test_a_table_made_anew_under_the_same_name_is_noticed(tmp_path):
    path = make_table(tmp_path / "t.lance")
    ds = sw.lance(path)
    fingerprint = ds.fingerprint
    copy = pickle.dumps(ds)
    shutil.rmtree(path)
    make_table(path)
    assert sw.lance(path).fingerprint != fingerprint
    with pytest.raises(StorageError, match="another table has taken the place"):
        pickle.loads(copy)[0]


# What else may be given


def test_open_tables_of_lance_and_lancedb_are_taken_with_their_version(tmp_path):
    import lancedb  # takes 1 s

    database = lancedb.connect(str(tmp_path))
    table = database.create_table("things", pa.table({"x": [1, 2, 3]}))
    ds = sw.lance(table)
    table.add(pa.table({"x": [4]}))
    assert [s["x"] for s in ds] == [1, 2, 3]
    assert [s["x"] for s in sw.lance(table)] == [1, 2, 3, 4]
    old = lance.dataset(
        str(tmp_path / "things.lance"), version=ds.source.selection.description.version
    )
    assert sw.lance(old).fingerprint == ds.fingerprint
    assert len(sw.lance(tmp_path / "things.lance")) == 4


def test_a_hundred_million_rows_are_planned_without_a_list_of_them(tmp_path):
    path = plenty(tmp_path / "t.lance", num_fragments=100)
    program = f"""
import resource, lance, pyarrow, numpy, shardwise as sw
sw.Plan(100, batch_size=1, shuffle=True).indices(0, 0, 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ds = sw.lance({path!r})
loader = sw.DataLoader(ds, batch_size=256, shuffle=True, rank=3, world_size=8)
assert len(loader) == 10**8 // 2048
loader.plan.indices(0, len(loader) - 1, 3)
print(len(ds), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    num_rows, grown_mb = run_program("-c", program).stdout.split()[-2:]
    assert int(num_rows) == 10**8
    assert float(grown_mb) < 200


def test_pickling_takes_no_rows_along(tmp_path):
    path = plenty(tmp_path / "t.lance", num_fragments=3, rows=200_000)
    ds = sw.lance(path)
    ds[5]
    assert len(pickle.dumps(ds)) < 20_000
    half = sw.lance(path, filter="id % 2 = 0")
    assert len(half) == 300_000
    assert len(pickle.dumps(half)) < 300_000 * 4 + 20_000
    assert half[299_999]["id"] == 199_998
