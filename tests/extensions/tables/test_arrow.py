"""Arrow's columns as ours: the values of pyarrow's own Python objects, without making these."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.columns import BytesColumn, values_of
from shardwise.base.errors import DataError
from shardwise.extensions.tables.arrow.columns import empty_columns, gather, key_texts, leaf
from shardwise.extensions.tables.arrow.convert import convert
from shardwise.extensions.tables.arrow.types import field_types, layouts, traits_of
from tests.support.properties import examples


def plain(value):
    """A value as pyarrow's `to_pylist` would have it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, memoryview):
        return bytes(value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def to_columns(ids, table, names):
    """All rows of a table, as a source reads them."""
    if not len(ids):
        return empty_columns(field_types(table.schema, parts=True), names)
    columns = {name: convert(leaf(table, name)) for name in names}
    rows = np.arange(len(ids))
    return gather(
        names, 0 * rows, rows, lambda _: columns, ids=ids, locate=lambda row: ("", str(ids[row]))
    )


def column_of(array, name="x", ids=None):
    table = pa.table({name: array})
    ids = np.arange(len(table)) if ids is None else ids
    return to_columns(ids, table, [name])[name]


INT = st.integers(-(2**31), 2**31 - 1)
KINDS = [
    (st.booleans(), pa.bool_()),
    (st.integers(-128, 127), pa.int8()),
    (st.integers(0, 2**16 - 1), pa.uint16()),
    (INT, pa.int32()),
    (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    (st.floats(width=16, allow_nan=False), pa.float16()),
    (st.floats(width=32, allow_nan=False), pa.float32()),
    (st.floats(allow_nan=False), pa.float64()),
    (st.binary(max_size=20), pa.binary()),
    (st.binary(max_size=20), pa.large_binary()),
    (st.binary(max_size=20), pa.binary_view()),
    (st.binary(min_size=3, max_size=3), pa.binary(3)),
    (st.text(max_size=20), pa.string()),
    (st.text(max_size=20), pa.large_string()),
    (st.text(max_size=20), pa.string_view()),
    (st.sampled_from(["cat", "dog", "émeu"]), pa.dictionary(pa.int8(), pa.string())),
    (st.sampled_from([b"cat", b"dog"]), pa.dictionary(pa.int32(), pa.binary())),
    (st.sampled_from([7, 9]), pa.dictionary(pa.uint16(), pa.int64())),
    (st.lists(INT, min_size=2, max_size=2), pa.list_(pa.int32(), 2)),
    (
        st.lists(st.lists(INT, min_size=1, max_size=1), min_size=3, max_size=3),
        pa.list_(pa.list_(pa.int64(), 1), 3),
    ),
    (st.lists(INT, max_size=4), pa.list_(pa.int32())),
    (st.lists(INT, max_size=4), pa.large_list(pa.int64())),
    (st.lists(st.lists(INT, max_size=2), max_size=2), pa.list_(pa.list_(pa.int32()))),
    (
        st.lists(st.lists(INT, min_size=2, max_size=2), max_size=3),
        pa.list_(pa.list_(pa.int32(), 2)),
    ),
    (st.lists(st.text(max_size=3), max_size=3), pa.list_(pa.string())),
    (st.lists(st.binary(max_size=3), max_size=3), pa.list_(pa.binary())),
    (st.lists(st.text(max_size=3), min_size=2, max_size=2), pa.list_(pa.string(), 2)),
    (
        st.lists(st.fixed_dictionaries({"a": INT}), max_size=2),
        pa.list_(pa.struct([("a", pa.int32())])),
    ),
]


@pytest.mark.parametrize(("values", "kind"), KINDS, ids=[str(kind) for _, kind in KINDS])
@settings(deadline=None, max_examples=examples(25))
@given(data=st.data())
def test_values_are_those_of_arrow_however_they_are_sliced_chunked_and_taken(values, kind, data):
    nulls = data.draw(st.booleans())
    given_values = data.draw(st.lists(st.none() | values if nulls else values, max_size=12))
    array = pa.array(given_values, kind)
    start = data.draw(st.integers(0, len(array)))
    for form in (array, array.slice(start), pa.chunked_array([array.slice(start), array])):
        wanted = form.to_pylist()
        assert plain(list(column_of(form))) == wanted
        if wanted:
            rows = np.array(data.draw(st.lists(st.integers(0, len(wanted) - 1), max_size=20)), int)
            taken = convert(form).take(rows)
            assert len(taken) == len(rows)
            assert plain(list(taken)) == [wanted[row] for row in rows]


@pytest.mark.parametrize(("values", "kind"), KINDS, ids=[str(kind) for _, kind in KINDS])
def test_no_rows_are_an_empty_column(values, kind):
    assert len(column_of(pa.array([], kind))) == 0
    assert len(convert(pa.array([None], kind)).take(np.array([], np.int64))) == 0


def test_numbers_and_fixed_lists_are_one_array_each():
    numbers = column_of(pa.array([1, 2, 3], pa.int16()))
    assert numbers.dtype == np.int16
    boxes = column_of(pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.float32(), 2), 1)))
    assert (boxes.shape, boxes.dtype) == ((2, 1, 2), np.float32)


def test_lists_of_one_length_are_one_array_too():
    taken = convert(pa.array([[1, 2], [3, 4, 5], [6, 7]])).take(np.array([2, 0]))
    assert taken.tolist() == [[6, 7], [1, 2]]


def test_a_fixed_shape_tensor_has_its_shape():
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3])
    storage = pa.array([[1, 2, 3, 4, 5, 6], None], pa.list_(pa.int32(), 6))
    array = pa.ExtensionArray.from_storage(kind, storage)
    first, second = column_of(array)
    assert first.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert second is None
    assert layouts(pa.schema([("x", kind)])) == {"x": ((2, 3), np.dtype(np.int32))}
    turned = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0])
    array = pa.ExtensionArray.from_storage(turned, storage.slice(0, 1))
    assert column_of(array).tolist() == array.to_numpy_ndarray().tolist()
    assert layouts(pa.schema([("x", turned)]))["x"][0] == (3, 2)


@pytest.mark.parametrize(
    ("kind", "value", "number"),
    [
        (pa.timestamp("ms"), datetime.datetime(1970, 1, 1, 0, 0, 2), 2000),
        (pa.timestamp("us", tz="UTC"), datetime.datetime(1970, 1, 1, 0, 0, 2), 2_000_000),
        (pa.date32(), datetime.date(1970, 1, 3), 2),
        (pa.time64("us"), datetime.time(0, 0, 1), 1_000_000),
        (pa.duration("s"), datetime.timedelta(minutes=1), 60),
    ],
)
def test_times_are_whole_numbers_of_the_columns_unit(kind, value, number):
    assert column_of(pa.array([value], kind)).tolist() == [number]


def test_what_numpy_has_no_form_for_is_a_python_object():
    price = decimal.Decimal("1.50")
    assert column_of(pa.array([price, None], pa.decimal128(5, 2))) == [price, None]
    pairs = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    assert column_of(pairs) == [[("a", 1)], None]
    assert column_of(pa.nulls(2)) == [None, None]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None]))
    assert column_of(runs) == ["a", "a", None]


def test_keys_of_bytes_are_texts_and_a_null_names_its_file():
    keys = column_of(pa.array([b"a", b"\xc3\xa9"]))
    assert key_texts(keys, str) == ["a", "\xe9"]
    assert key_texts(column_of(pa.array([1, 2])), str) == ["1", "2"]
    for array, why in ((["a", None], "is null"), ([b"a", b"\xff"], "can't decode")):
        with pytest.raises(DataError, match=why) as caught:
            key_texts(column_of(pa.array(array)), "file {}".format)
        assert (caught.value.url, caught.value.field) == ("file 1", "__key__")


def test_structs_are_taken_apart_and_hand_their_nulls_down():
    image = pa.struct([("bytes", pa.binary()), ("size", pa.list_(pa.int32(), 2))])
    rows = [
        {"w": 1, "image": {"bytes": b"a", "size": [1, 2]}},
        None,
        {"w": 3, "image": None},
    ]
    table = pa.table({"meta": pa.array(rows, pa.struct([("w", pa.int64()), ("image", image)]))})
    names = list(field_types(table.schema))
    assert names == ["meta.w", "meta.image.bytes", "meta.image.size"]
    for form in (table, table.combine_chunks().to_batches()[0], table.slice(0, 3)):
        columns = to_columns(np.arange(3), form, names)
        assert columns["meta.w"] == [1, None, 3]
        assert columns["meta.image.bytes"].to_list() == [b"a", None, None]
        assert plain(columns["meta.image.size"]) == [[1, 2], None, None]


def test_a_column_with_dots_in_its_name_is_itself():
    table = pa.table({"a.b": [1], "a": [{"c.d": 2}]})
    columns = to_columns(np.arange(1), table, ["a.b", "a.c.d"])
    assert [column.tolist() for column in columns.values()] == [[1], [2]]
    with pytest.raises(DataError, match=r"two columns are called 'a\.b'"):
        field_types(pa.schema([("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))]))


def test_bytes_share_arrows_buffer():
    array = pa.array([b"first", None, b"second"])
    column = column_of(array)
    assert isinstance(column, BytesColumn)
    data = np.frombuffer(array.buffers()[2], np.uint8)
    assert np.shares_memory(column.buffer, data)
    taken = convert(array).take(np.array([2, 0]))
    assert np.shares_memory(taken.buffer, data)
    assert list(map(bytes, taken)) == [b"second", b"first"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2)),
        pa.array([[1, 2], [None]]),
        pa.array([[[1], [2]], [[None], [3]]], pa.list_(pa.list_(pa.float64(), 1), 2)),
    ],
)
def test_a_null_among_the_numbers_of_a_list_names_the_sample(array):
    with pytest.raises(DataError, match="null among them") as caught:
        column_of(array, "boxes", ids=np.array([40, 41]))
    assert (caught.value.field, caught.value.index) == ("boxes", 41)
    # The other row is whole, and is had.
    assert len(convert(array).take(np.array([0, 0]))) == 2


def test_what_lies_under_a_null_list_means_nothing():
    values = pa.array([1, None, None, 4])
    array = pa.FixedSizeListArray.from_arrays(values, 2, mask=pa.array([True, True]))
    assert column_of(array) == [None, None]


def test_common_numbers_are_pythons_own_beside_a_null():
    assert [type(v) for v in column_of(pa.array([1, None]))] == [int, type(None)]
    assert [type(v) for v in column_of(pa.array([1, None], pa.int32()))] == [np.int32, type(None)]


def test_the_schema_says_which_columns_are_values_and_of_which_form():
    schema = pa.schema(
        [
            ("jpg", pa.binary()),
            ("id", pa.binary(16)),
            ("words", pa.dictionary(pa.int8(), pa.binary())),
            ("text", pa.string()),
            ("label", pa.int64()),
            ("vec", pa.list_(pa.float32(), 3)),
            ("tokens", pa.list_(pa.int32())),
        ]
    )
    assert traits_of(schema).value_fields == {"text", "label", "vec", "tokens"}
    assert layouts(schema) == {
        "label": ((), np.dtype(np.int64)),
        "vec": ((3,), np.dtype(np.float32)),
    }


@pytest.mark.parametrize(("values", "kind"), KINDS, ids=[str(kind) for _, kind in KINDS])
@settings(deadline=None, max_examples=examples(25))
@given(data=st.data())
def test_rows_of_several_groups_come_in_the_order_that_they_are_asked_for(values, kind, data):
    lists = st.lists(st.none() | values, min_size=1, max_size=6)
    groups = data.draw(st.lists(lists, min_size=1, max_size=4))
    places = [(group, row) for group, of_group in enumerate(groups) for row in range(len(of_group))]
    asked = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=20))
    numbers, rows = np.array(asked).T
    columns = [{"x": convert(pa.array(of_group, kind))} for of_group in groups]
    found = gather(
        ["x"], numbers, rows, columns.__getitem__, ids=rows, locate=lambda row: ("", str(row))
    )
    assert plain(values_of(found["x"])) == [groups[group][row] for group, row in asked]
