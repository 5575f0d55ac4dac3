"""Files that differ in their columns, and nulls: `columns=`, `schema=` and `fill=`."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.testing import check_source


def write(directory, *tables):
    directory.mkdir(exist_ok=True)
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), directory / f"{number}.parquet", row_group_size=4)
    return directory


def batches(ds, size=3, **options):
    with sw.DataLoader(
        ds, batch_size=size, remainder="uneven", rank=0, world_size=1, output="numpy", **options
    ) as loader:
        yield from loader


DRIFTS = {
    "int32, int64": (pa.array([1], pa.int32()), pa.array([2])),
    "int64, double": (pa.array([1]), pa.array([0.5])),
    "float, double": (pa.array([1], pa.float32()), pa.array([0.5])),
    "null, string": (pa.nulls(1), pa.array(["x"])),
    "list, large_list": (
        pa.array([[1, 2]]),
        pa.array([[3, 4]], pa.large_list(pa.int64())),
    ),
    "timestamps": (
        pa.array([1], pa.timestamp("ms")),
        pa.array([2], pa.timestamp("us")),
    ),
    "not there": (pa.array([1]), None),
    "there": (None, pa.array([1])),
}
TYPES = {
    "int32, int64": ("int64", [1, 2]),
    "int64, double": ("float64", [1.0, 0.5]),
    "float, double": (pa.float64(), [1.0, 0.5]),
    "null, string": ("string", [None, "x"]),
    "list, large_list": (pa.list_(pa.int64(), 2), [[1, 2], [3, 4]]),
    "timestamps": ("timestamp[us]", [1000, 2]),
    "not there": ("int64", [1, None]),
    "there": ("int64", [None, 1]),
}


@pytest.fixture(params=DRIFTS)
def drifted(request, tmp_path):
    """A directory of two files that differ in their column x, and how they do."""
    columns = [{"id": [7]} | ({} if x is None else {"x": x}) for x in DRIFTS[request.param]]
    return write(tmp_path / "t", *columns), request.param


def test_files_that_differ_are_refused_with_the_way_out(drifted):
    path, _ = drifted
    with pytest.raises(DataError, match=r"'x' is .*, in .* schema=\{'x': .*columns=") as caught:
        len(sw.parquet(path))
    assert (caught.value.url, caught.value.field) == (str(path / "1.parquet"), "x")


@pytest.mark.parametrize("first", [0, 1])
def test_bytes_that_only_some_files_have_in_dictionaries_are_bytes_in_one_batch(tmp_path, first):
    values = [b"x", None, b"yy"]
    columns = [pa.array(values), pa.array(values).dictionary_encode()]
    ds = sw.parquet(write(tmp_path / "t", *({"b": columns[i]} for i in (first, 1 - first))))
    assert [sample.get("b") for sample in ds] == values * 2
    check_source(ds.source)
    ids = np.array([5, 0, 1, 4, 2, 3])
    batch = ds.load(ids)["b"]
    assert batch == [values[i % 3] for i in ids]
    assert {type(value) for value in batch} == {bytes, type(None)}


def test_files_may_differ_in_columns_that_are_not_read(drifted):
    ds = sw.parquet(drifted[0], columns=["id"])
    assert [sample["id"] for sample in ds] == [7, 7]
    check_source(ds.source)


@pytest.mark.parametrize("whole", [False, True])
def test_a_schema_gives_every_file_one_type(drifted, whole):
    path, how = drifted
    kind, wanted = TYPES[how]
    schema = {"x": kind}
    if whole:
        kind = pa.type_for_alias(kind) if isinstance(kind, str) else kind
        schema = pa.schema([("x", kind)])
    ds = sw.parquet(path, schema=schema)
    assert ds.fields == (("x",) if whole else ("id", "x"))
    found = [sample.get("x") for sample in ds]
    assert [x.tolist() if isinstance(x, np.ndarray) else x for x in found] == wanted
    assert [type(x) for x in found if not isinstance(x, np.ndarray)] == [
        type(x) for x in wanted if not isinstance(x, list)
    ]
    check_source(ds.source)


def test_a_list_of_a_fixed_size_is_a_tensor_in_every_batch_or_an_error(tmp_path):
    path = write(tmp_path / "t", {"v": [[1, 2], [3, 4], [5, 6]]}, {"v": [[7, 8], [9]]})
    ds = sw.parquet(path, schema={"v": pa.list_(pa.float32(), 2)})
    assert ds.select("v").layout() == {"v": ((2,), np.dtype(np.float32))}
    read = batches(ds)
    assert next(read)["v"].tolist() == [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(DataError, match=r"'v' is list.*can't be cast to the fixed_size_list") as e:
        next(read)
    assert (e.value.url, e.value.field) == (str(path / "1.parquet"), "v")


def test_a_value_that_does_not_fit_the_schema_names_the_file(tmp_path):
    path = write(tmp_path / "t", {"x": [1, 300]})
    with pytest.raises(DataError, match=r"'x' is int64, and can't be cast to the int8.*300") as e:
        sw.parquet(path, schema={"x": "int8"})[1]
    assert e.value.url == str(path / "0.parquet")


@pytest.mark.parametrize(
    ("schema", "error", "message"),
    [
        ({"y": "int64"}, DataError, "schema= names the column 'y', which no file has"),
        ({"x": "number"}, ValueError, "schema={'x': 'number'}: give a pyarrow type"),
        (["x"], TypeError, "give a pyarrow schema, or a dict"),
        ({"s": pa.list_(pa.int8())}, DataError, "'s' is string, and can't be cast to the list"),
    ],
)
def test_a_schema_that_cannot_be_had_is_refused_when_the_table_is_opened(
    tmp_path, schema, error, message
):
    path = write(tmp_path / "t", {"x": [1], "s": ["a"]})
    with pytest.raises(error, match=message):
        len(sw.parquet(path, schema=schema))


def test_a_struct_is_cast_part_by_part_and_directories_too(tmp_path):
    rows = pa.array([{"w": 1, "name": "a"}])
    path = write(tmp_path / "year=2024", {"meta": rows})
    schema = pa.schema([("meta", pa.struct([("w", pa.float32())])), ("year", pa.int16())])
    ds = sw.parquet(path, schema=schema)
    assert ds.fields == ("meta.w", "year")
    (batch,) = batches(ds)
    assert (batch["meta.w"].dtype, batch["year"].dtype) == (np.float32, np.int16)
    assert batch["year"].tolist() == [2024]


NULLS = {
    "n": pa.array([1, 2, 3, 4, None, 6]),
    "u": pa.array([1, 2, 3, 4, 5, None], pa.uint8()),
    "b": [True, None, True, False, True, False],
    "v": pa.array([[1, 2]] * 5 + [None], pa.list_(pa.float32(), 2)),
    "s": ["a", None, "c", "d", "e", "f"],
    "d": [b"a", None, b"c", b"d", b"e", b"f"],
    "w": pa.array(["a", None, "a", "b", "b", None]).dictionary_encode(),
    "t": pa.array([1, None, 3, 4, 5, 6], pa.timestamp("us")),
}


@pytest.mark.parametrize("name", ["n", "u", "b", "v", "t"])
@pytest.mark.parametrize("asked", [False, True])
def test_a_null_among_numbers_is_an_error_that_names_the_row_and_the_way_out(tmp_path, name, asked):
    path = write(tmp_path / "t", {name: NULLS[name]})
    ds = sw.parquet(path, columns=[name]) if asked else sw.parquet(path)
    row = pa.array(NULLS[name]).to_pylist().index(None)
    forms = []
    with pytest.raises(DataError, match=rf"fill=\{{'{name}': \.\.\.\}}") as caught:
        forms += [type(batch[name]) for batch in batches(ds)]
    assert set(forms) <= {np.ndarray}
    assert (caught.value.key, caught.value.field, caught.value.index) == (f"0:{row}", name, row)
    # One sample simply lacks the field, unless it was asked for.
    if not asked:
        assert name not in ds[row]


@pytest.mark.parametrize(
    ("name", "fill", "value"),
    [
        ("n", {"n": -1}, -1),
        ("n", 0, 0),
        ("u", {"u": 255}, 255),
        ("b", {"b": True}, True),
        ("v", {"v": 0}, [0, 0]),
        ("v", {"v": [1, 2.5]}, [1, 2.5]),
        ("s", {"s": ""}, ""),
        ("d", b"?", b"?"),
        ("w", {"w": "unknown"}, "unknown"),
        ("t", {"t": 0}, 0),
    ],
)
def test_fill_stands_for_a_null_in_every_batch_and_sample(tmp_path, name, fill, value):
    path = write(tmp_path / "t", {name: NULLS[name]})
    ds = sw.parquet(path, columns=[name], fill=fill)
    nulls = pa.array(NULLS[name])
    plain = nulls.cast(pa.int64()) if name == "t" else nulls
    wanted = [value if each is None else each for each in plain.to_pylist()]
    read = [batch[name] for batch in batches(ds)]
    assert [x.tolist() if hasattr(x, "tolist") else x for batch in read for x in batch] == wanted
    if name in "nubvt":
        assert {batch.dtype for batch in read} == {ds.layout()[name][1]}
    for row, each in enumerate(wanted):
        found = ds[row][name]
        assert (found.tolist() if hasattr(found, "tolist") else found) == each


def test_one_fill_is_for_all_columns_of_its_kind_and_for_those_that_files_lack(tmp_path):
    path = write(tmp_path / "t", NULLS, {"n": [8]})
    schema = {name: pa.array(column).type for name, column in NULLS.items()}
    ds = sw.parquet(path, schema=schema, fill=0, columns=["n", "u", "v"])
    rows = [(s["n"], s["u"], s["v"].tolist()) for s in ds]
    assert rows[4:] == [(0, 5, [1, 2]), (6, 0, [0, 0]), (8, 0, [0, 0])]
    made = sw.parquet(path, columns=["new"], schema={"new": "int32"}, fill={"new": 3})
    assert {batch["new"].dtype for batch in batches(made)} == {np.dtype(np.int32)}
    check_source(ds.source)


def test_a_directory_without_a_value_can_be_filled(tmp_path):
    for name in ("m=3", "m=__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / name, {"n": [1]})
    assert [sample.get("m") for sample in sw.parquet(tmp_path)] == [3, None]
    with pytest.raises(DataError, match="fill="):
        list(batches(sw.parquet(tmp_path)))
    (batch,) = batches(sw.parquet(tmp_path, fill={"m": -1}))
    assert batch["m"].tolist() == [3, -1]


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        ({"x": 0}, "fill= names 'x': the columns are 'n', 'u'"),
        ({"u": 300}, "column is uint8"),
        ({"n": 0.5}, "column is int64"),
        ({"n": "0"}, "column is int64"),
        ({"s": 0}, "column is string"),
        ({"v": [1, 2, 3]}, "column is fixed_size_list"),
        ([1], "fill=.1.: no column is of that kind"),
    ],
)
def test_a_fill_that_does_not_fit_is_refused_when_the_table_is_opened(tmp_path, fill, message):
    path = write(tmp_path / "t", {name: NULLS[name] for name in ("n", "u", "s", "v")})
    with pytest.raises(ValueError, match=message):
        len(sw.parquet(path, fill=fill))


IMAGE = [{"bytes": b"one", "path": "1.png"}, {"bytes": b"two", "path": None}, None]


def test_an_image_of_the_hub_is_one_field_and_its_parts_can_be_named(tmp_path):
    path = write(tmp_path / "t", {"image": IMAGE, "in": [{"audio": each} for each in IMAGE]})
    ds = sw.parquet(path)
    assert ds.fields == ("image", "in.audio")
    assert ds[0] == {"__key__": "0:0", "image": b"one", "in.audio": b"one"}
    assert ds[2] == {"__key__": "0:2"}
    check_source(ds.source)
    decoded = ds.subset([0, 1]).decode(image=bytes.upper)
    assert decoded.load(np.arange(2))["image"] == [b"ONE", b"TWO"]
    for parts in (
        sw.parquet(path, columns=["image.path", "image.bytes"]),
        ds.select("image.path", "image.bytes"),
    ):
        assert parts[0] == {"__key__": "0:0", "image.path": "1.png", "image.bytes": b"one"}
    named = ds.decode(**{"image.bytes": bytes.upper})
    assert named.fields == ("in.audio", "image.bytes")
    assert named[1] == {"__key__": "0:1", "in.audio": b"two", "image.bytes": b"TWO"}
    with pytest.raises(ValueError, match=r"'image', 'in\.audio', 'image\.bytes'"):
        ds.select("image.size")


def test_a_struct_that_is_no_image_stays_fields(tmp_path):
    rows = [{"bytes": 3, "path": "x"}]
    assert sw.parquet(write(tmp_path / "t", {"a": rows})).fields == ("a.bytes", "a.path")
