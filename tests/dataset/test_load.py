"""Fields, decoders and the columns of `load`; whose fault it was, where they fail."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.counters import Stages
from shardwise.base.errors import DataError, MissingExtraError
from shardwise.dataset import Dataset
from shardwise.dataset.field import Field, in_place
from tests.support.decoders import Doubled, InPlace, WholeColumn
from tests.support.memory_source import MemorySource, numbered_samples

NUM_SAMPLES = 12
IDS = np.array([4, 0, 11, 4])


def make(**decoders):
    ds = Dataset(MemorySource(numbered_samples(NUM_SAMPLES), [5, 7]))
    return ds.select(*decoders).decode(**decoders) if decoders else ds


def ragged():
    """Sample 2 of 5 has no `opt`."""
    samples = numbered_samples(5)
    for i in (0, 1, 3, 4):
        samples[i]["opt"] = np.int64(i).tobytes()
    return Dataset(MemorySource(samples))


def test_what_is_not_decoded_is_a_list_of_owned_bytes():
    columns = make().load(IDS)
    assert list(columns) == ["__key__", "cls", "txt", "bin"]
    assert columns["__key__"] == [f"key-{i:05d}" for i in IDS]
    assert columns["cls"] == [str(i).encode() for i in IDS]
    assert {type(value) for value in columns["bin"]} == {bytes}


def test_any_callable_of_bytes_is_a_decoder():
    columns = make(cls=Doubled(), txt=bytes.upper).load(IDS)
    assert columns["cls"] == [str(i).encode() * 2 for i in IDS]
    assert columns["txt"] == [f"TEXT {i}".encode() for i in IDS]


def test_int_and_str_read_text():
    ds = make(cls=int, txt=str)
    assert ds[7] == {"__key__": "key-00007", "cls": 7, "txt": "text 7"}
    assert np.asarray(ds.load(IDS)["cls"]).tolist() == IDS.tolist()
    assert list(ds.load(IDS)["txt"]) == [f"text {i}" for i in IDS]


def test_a_whole_column_is_decoded_at_once_where_the_decoder_can():
    decoder = WholeColumn()
    columns = make(bin=decoder).load(IDS)
    assert isinstance(columns["bin"], np.ndarray)
    assert columns["bin"].tolist() == IDS.tolist()
    assert (decoder.num_columns, decoder.num_calls) == (1, 0)


def test_rows_are_decoded_in_place_where_the_caller_has_them():
    decoder = InPlace()
    rows = np.full(6, -1)
    columns = make(bin=decoder).load(IDS, out={"bin": rows[1:5]})
    assert rows.tolist() == [-1, *IDS.tolist(), -1]
    assert columns["bin"].base is rows
    assert (decoder.num_into, decoder.num_calls) == (4, 0)


def test_a_column_is_copied_into_rows_at_once_where_the_decoder_can():
    decoder = WholeColumn()
    rows = np.zeros(4, dtype=np.int64)
    make(bin=decoder).load(IDS, out={"bin": rows})
    assert rows.tolist() == IDS.tolist()
    assert (decoder.num_columns, decoder.num_into) == (1, 0)


def test_a_column_of_another_dtype_than_the_rows_is_decoded_row_by_row():
    class Narrow(WholeColumn):
        def decode_column(self, column):
            return super().decode_column(column).astype(np.float32)

    rows = np.zeros(4, dtype=np.int64)
    make(bin=Narrow()).load(IDS, out={"bin": rows})
    assert rows.tolist() == IDS.tolist()


def test_the_layout_has_the_fields_that_can_be_filled_in_place():
    layout = {"bin": ((), np.dtype(np.int64))}
    ds = make(bin=InPlace(), cls=Doubled(), txt=str)
    assert ds.layout() == layout
    assert ds.map(dict).layout() == {}
    assert make().layout() == {}
    without = InPlace()
    without.row = None
    assert make(bin=without).layout() == {}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, NUM_SAMPLES - 1)), st.sampled_from([InPlace, WholeColumn]))
def test_samples_columns_and_rows_in_place_agree(taken, kind):
    ids = np.array(taken, dtype=np.int64)
    ds = make(bin=kind(), cls=Doubled(), txt=str)
    columns = ds.load(ids)
    rows = {name: np.empty((len(ids), *s), d) for name, (s, d) in ds.layout().items()}
    filled = ds.load(ids, out=rows)
    for row, i in enumerate(taken):
        for loaded in (columns, filled):
            assert {name: loaded[name][row] for name in loaded} == ds[i] == ds[[i]][0]


def test_no_samples_have_the_same_columns():
    columns = make(bin=WholeColumn(), txt=str).load(np.empty(0, dtype=np.int64))
    assert {name: len(column) for name, column in columns.items()} == {
        "__key__": 0,
        "bin": 0,
        "txt": 0,
    }
    assert columns["bin"].dtype == np.int64


def test_ids_out_of_range_never_reach_the_source():
    for bad in (-1, NUM_SAMPLES):
        with pytest.raises(IndexError, match=f"index {bad}, number 1 of 2"):
            make().load(np.array([0, bad]))


def test_stages_are_counted():
    for ds, stages in (
        (make(cls=int), ["read", "decode"]),
        (make(cls=int).map(dict), ["read", "decode", "transform"]),
    ):
        stats = Stages()
        ds.load(IDS, stats=stats)
        assert list(stats.seconds) == stages
        assert min(stats.seconds.values()) >= 0
        assert stats.num_bytes == 1 + 1 + 2 + 1


# Fields that a sample lacks.


def test_a_missing_field_is_left_out_of_the_sample_and_none_in_its_column():
    ds = ragged()
    assert "opt" in ds[1]
    assert "opt" not in ds[2]
    assert ["opt" in sample for sample in ds] == [True, True, False, True, True]
    assert [value is None for value in ds.load(np.arange(5))["opt"]] == [i == 2 for i in range(5)]


@pytest.mark.parametrize(
    "ask",
    [
        lambda ds: ds.select("opt"),
        lambda ds: ds.decode(opt=InPlace()),
        lambda ds: ds.decode(opt=WholeColumn()),
        lambda ds: ds.decode(opt=Doubled()),
    ],
)
def test_a_missing_field_that_was_asked_for_is_an_error_with_its_place(ask):
    ds = ask(ragged())
    rows = {name: np.empty((3, *s), d) for name, (s, d) in ds.layout().items()}
    reads = [
        lambda: ds[2],
        lambda: ds[1:4],
        lambda: list(ds),
        lambda: ds.load(np.array([0, 2, 1])),
        lambda: ds.load(np.array([0, 2, 1]), out=rows),
        lambda: ds.map(dict).load(np.array([0, 2, 1])),
    ]
    for read in reads:
        with pytest.raises(DataError, match=r"no field 'opt'.*select.*subset") as caught:
            read()
        error = caught.value
        place = (error.url, error.key, error.field, error.index)
        assert place == ("memory://set/000.mem", "key-00002", "opt", 2)
    assert ds[1]["__key__"] == "key-00001"


def test_default_decoders_do_not_ask_for_a_field():
    samples = numbered_samples(3)
    del samples[1]["cls"]
    ds = Dataset(MemorySource(samples)).decode()
    assert ds[0] == {"__key__": "key-00000", "cls": 0, "txt": "text 0", "bin": samples[0]["bin"]}
    assert "cls" not in ds[1]
    assert list(ds.load(np.arange(3))["cls"]) == [0, None, 2]
    assert ds.layout() == {}


def test_a_field_that_samples_may_lack_is_not_filled_in_place():
    assert in_place(Field("x", InPlace(), required=True)) == ((), np.dtype(np.int64))
    assert in_place(Field("x", InPlace(), required=False)) is None


def test_default_decoders_leave_the_users_own():
    ds = make().decode(cls=Doubled()).decode()
    assert ds[3]["cls"] == b"33"
    assert ds[3]["txt"] == "text 3"
    assert make().decode().decode(cls=Doubled())[3]["cls"] == b"33"


def test_a_decoder_of_a_field_no_longer_selected_is_forgotten():
    ds = make(cls=Doubled(), txt=str).select("txt")
    assert ds[3] == {"__key__": "key-00003", "txt": "text 3"}
    assert "Doubled" not in repr(ds)


# Decoders that fail.

BAD = np.int64(9).tobytes()


@pytest.mark.parametrize("kind", [InPlace, WholeColumn])
def test_a_decoders_error_names_sample_field_decoder_and_cause(kind):
    ds = make(bin=kind(bad=BAD)).subset([4, 9, 2])
    rows = {"bin": np.empty(3, dtype=np.int64)}
    reads = [
        lambda: ds[1],
        lambda: list(ds),
        lambda: ds.load(np.arange(3)),
        lambda: ds.load(np.arange(3), out=rows),
        lambda: ds.map(dict).load(np.arange(3)),
    ]
    for read in reads:
        with pytest.raises(DataError, match=r"InPlace\(\) raised OverflowError: this") as caught:
            read()
        error = caught.value
        assert isinstance(error.__cause__, OverflowError)
        place = (error.url, error.key, error.field, error.index)
        assert place == ("memory://set/001.mem", "key-00009", "bin", 1)


def test_a_decoder_that_is_a_function_is_called_by_its_name():
    def half(data):
        return 1 / 0

    with pytest.raises(DataError, match=r"half raised ZeroDivisionError: division by zero"):
        make(cls=half)[0]


def test_a_column_that_fails_as_a_whole_is_decoded_row_by_row():
    class Ragged(WholeColumn):
        def decode_column(self, column):
            raise ValueError("not of one shape")

    columns = make(bin=Ragged()).load(IDS)
    assert list(columns["bin"]) == IDS.tolist()


def test_a_decoders_own_data_error_gets_the_place():
    def decode(data):
        raise DataError("no start of image", offset=3)

    with pytest.raises(DataError, match=r"raised DataError: no start of image \(url") as caught:
        make(cls=decode)[5]
    assert caught.value.key == "key-00005"


def test_a_missing_extra_is_no_damaged_data():
    def decode(data):
        raise MissingExtraError("decoding needs x", extra="image")

    for read in (lambda: make(cls=decode)[0], lambda: make(cls=decode).load(IDS)):
        with pytest.raises(MissingExtraError):
            read()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_passes(stop):
    def decode(data):
        raise stop

    with pytest.raises(stop):
        make(cls=decode)[0]
    with pytest.raises(stop):
        make().map(decode)[0]


def test_what_is_no_decoder_is_refused():
    with pytest.raises((TypeError, ValueError)):
        make().decode(cls=3)


def test_samples_that_are_only_read_are_light():
    whole = Dataset(MemorySource(numbered_samples(40)))
    mean = whole.manifest.shards[0].num_bytes / 40
    assert whole.cost.row_bytes == mean
    assert whole.select("cls").decode(cls=int).cost.row_bytes == mean
    assert whole.decode(cls=lambda data: int(bytes(data))).cost.row_bytes is None
    assert whole.map(dict).cost.row_bytes is None
