"""A mixture as a dataset: every format with its own decoding, one set of fields, and bad input."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.extensions.mixtures.dataset import MixedDataset
from shardwise.plan import WindowShape
from shardwise.testing import check_source
from tests.support.lance_tables import make_table
from tests.support.tables import write_groups
from tests.support.tars import make_shards


def numbered(name, count, **more):
    return sw.wrap([{"text": f"{name} {i}", "n": i, **more} for i in range(count)])


def two(**options):
    parts = {"web": (numbered("web", 70), 0.7), "code": (numbered("code", 30, lang="py"), 0.3)}
    return sw.mix(parts, **options)


@pytest.fixture
def formats(tmp_path):
    """Three formats and a mixture: all of the first three have `bin`, two of them `id`."""
    tars = sw.tar(make_shards(tmp_path / "tars", [40, 33])).select("cls", "bin").decode(cls=int)
    table = sw.parquet(write_groups(tmp_path / "rows.parquet", (30, 0, 25)))
    lance = sw.lance(make_table(tmp_path / "rows.lance", 61)).select("id", "bin", "vector")
    inner = sw.mix({"a": (numbered("a", 50), 1), "b": (numbered("b", 20), 1)}, until="all")
    return {"tar": tars, "parquet": table, "lance": lance, "inner": inner}


def test_a_dataset_without_a_weight_is_an_error_where_no_schedule_has_one():
    parts = {"a": (sw.wrap(range(3)), 1), "b": sw.wrap(range(3))}
    with pytest.raises(ValueError, match="'b' without a weight: give"):
        sw.mix(parts)
    sw.mix(parts, schedule=[(2, {"b": 1})])


@pytest.mark.extension
def test_a_mixture_of_every_format_has_each_one_samples_as_they_are(formats):
    mixed = sw.mix({name: (part, 1) for name, part in formats.items()}, until="all")
    assert len(mixed) == sum(map(len, formats.values()))
    start = 0
    for name, part in formats.items():
        for index in (0, len(part) - 1):
            expected = part[index]
            own = expected.pop("__source__", None)
            sample = mixed[start + index]
            assert sample.pop("__source__") == (name if own is None else f"{name}/{own}")
            assert sample.keys() == expected.keys()
            assert all(np.array_equal(sample[field], expected[field]) for field in sample)
        start += len(part)
    assert len(list(mixed)) == len(mixed)
    seen = {}
    loader = sw.DataLoader(mixed, batch_size=16, output="numpy", remainder="uneven")
    for batch in loader:
        columns = {"__key__", "__index__", *mixed.fields}
        assert set(batch) == columns, "every batch has the fields of all"
        for row, index in enumerate(batch["__index__"].tolist()):
            seen[index] = batch["__source__"][row]
            assert batch["__key__"][row] == mixed[index]["__key__"]
            for field in ("cls", "bin", "text", "id"):
                assert mixed[index].get(field) == batch[field][row]
    assert set(seen) == set(range(len(mixed)))
    assert set(seen.values()) == {"tar", "parquet", "lance", "inner/a", "inner/b"}


def test_its_source_keeps_the_protocol():
    check_source(two().source)


def test_fields_that_all_have_are_arrays_and_a_lacking_one_is_none():
    mixed = two(until="all")
    assert mixed.fields == ("text", "n", "lang", "__source__")
    batch = next(iter(sw.DataLoader(mixed, batch_size=64, output="numpy")))
    assert batch["n"].dtype == np.int64
    for source, lang in zip(batch["__source__"], batch["lang"], strict=True):
        assert lang == ("py" if source == "code" else None)
    assert "lang" not in mixed[0]
    assert mixed[70]["lang"] == "py"


def test_fields_of_a_fixed_shape_are_decoded_into_the_batch():
    parts = {
        name: (sw.wrap(np.arange(size, dtype=np.float32)), 1)
        for name, size in (("a", 64), ("b", 96))
    }
    mixed = sw.mix(parts, until="all")
    (batch, *_) = sw.DataLoader(mixed, batch_size=32, output="numpy")
    assert batch["value"].dtype == np.float32
    expected = [mixed[i]["value"] for i in batch["__index__"].tolist()]
    assert batch["value"].tolist() == expected


def test_each_dataset_is_decoded_and_mapped_for_itself_and_together():
    def shout(sample, rng):
        return {"text": f"{sample['text'].upper()} {sample['__source__']}", "r": rng.random()}

    web = numbered("web", 70).map(lambda sample: {**sample, "extra": 1})
    mixed = sw.mix({"web": (web, 1), "code": (numbered("code", 30), 1)}, until="all")
    assert mixed[0]["extra"] == 1
    assert "extra" not in mixed[70]
    batch = next(iter(sw.DataLoader(mixed, batch_size=32, output="numpy")))
    assert {1, None} == set(batch["extra"])
    loud = mixed.map(shout)
    assert loud[69]["text"] == "WEB 69 web"
    assert loud[70]["text"] == "CODE 0 code"
    outer = sw.mix({"in": (mixed, 1)}, until=64).map(shout)
    assert outer[70]["text"] == "CODE 0 in/code"
    assert outer[70]["__source__"] == "in/code"


def test_what_is_random_has_other_values_in_each_dataset_epoch_and_seed():
    def draw(_, rng):
        return {"r": rng.random()}

    # Two epochs of 30 samples are less than an epoch of each dataset: no sample comes again.
    mixed = two(until=30, seed=1).map(draw)
    drawn = []
    for dataset in (mixed, two(until=30, seed=2).map(draw)):
        loader = sw.DataLoader(dataset, batch_size=30, output="numpy")
        for _ in range(2):
            (batch,) = list(loader)
            drawn += batch["r"].tolist()
    assert len(set(drawn)) == len(drawn)


def test_select_and_decode_reach_the_datasets_that_have_the_field(tmp_path):
    tars = sw.tar(make_shards(tmp_path, [20]))
    mixed = sw.mix({"tar": (tars, 1), "list": (numbered("x", 9), 1)}, until="all")
    chosen = mixed.select("cls", "n").decode(cls=int)
    assert set(chosen[0]) == {"__key__", "cls", "__source__"}
    assert isinstance(chosen[0]["cls"], int)
    assert set(chosen[25]) == {"__key__", "n", "__source__"}
    with pytest.raises(ValueError, match=r"select\(\): no dataset of the mixture has 'clss'"):
        mixed.select("clss")
    with pytest.raises(ValueError, match=r"decode\(\): no dataset of the mixture has 'clss'"):
        mixed.decode(clss=int)
    assert chosen.sampler is mixed.sampler


def test_a_mixture_pickles_small_and_is_known_by_its_datasets():
    mixed = two(seed=4)
    copy = pickle.loads(pickle.dumps(mixed))
    assert copy.fingerprint == mixed.fingerprint
    assert copy.sampler.spec() == mixed.sampler.spec()
    assert copy[71] == mixed[71]
    assert two(seed=5).fingerprint == mixed.fingerprint
    other = sw.mix({"web": (numbered("web", 71), 0.7), "code": (numbered("code", 30), 0.3)})
    assert other.fingerprint != mixed.fingerprint
    assert repr(mixed).startswith("mix({'web': (Dataset(")
    assert "until='first', per='sample', seed=4" in repr(mixed)
    changing = two(schedule=[(0, {"web": 1}), (300, {"code": 1})])
    assert "weights change at 512" in repr(changing)
    assert "__source__" in mixed._repr_html_()


def test_samples_are_found_by_any_index_and_located_for_messages():
    mixed = two()
    assert mixed[-1] == mixed[99] == mixed[np.int64(99)]
    assert [s["text"] for s in mixed[[99, 0, 70]]] == ["code 29", "web 0", "code 0"]
    assert [s["text"] for s in mixed[68:72]] == ["web 68", "web 69", "code 0", "code 1"]
    assert mixed.describe(71).startswith("sample 71, of 'code' sample 1 of")
    assert mixed.url_of(71) == numbered("code", 30).url_of(1)
    with pytest.raises(IndexError):
        mixed[100]
    with pytest.raises(TypeError):
        mixed[1.5]


def test_a_damaged_sample_is_named_by_its_index_in_the_mixture():
    def fail(sample):
        if sample["n"] == 3:
            raise ValueError("three")
        return sample

    code = numbered("code", 30).map(fail)
    mixed = sw.mix({"web": (numbered("web", 70), 1), "code": (code, 1)}, until="all")
    loader = sw.DataLoader(mixed, batch_size=25, output="numpy", remainder="uneven")
    with pytest.raises(DataError, match="three") as error:
        list(loader)
    assert error.value.index == 73
    skipping = sw.DataLoader(mixed, batch_size=25, remainder="uneven", on_error="skip")
    ids = [i for batch in skipping for i in batch["__index__"].tolist()]
    assert 73 not in ids
    assert skipping.stats()["skipped"] >= 1


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda a: sw.mix({}), ValueError, "one dataset or more"),
        (lambda a: sw.mix([a, a]), TypeError, "a dict from names"),
        (lambda a: sw.mix({3: (a, 1)}), TypeError, "name is a str"),
        (lambda a: sw.mix({"a": ([1], 1)}), TypeError, "wrap it with sw.wrap"),
        (lambda a: sw.mix({"a": (a, 1, 2)}), TypeError, "give \\(dataset, weight\\)"),
        (lambda a: sw.mix({"a": a}), ValueError, "'a' without a weight"),
        (lambda a: sw.mix({"a": (a, 0)}), ValueError, "all weights are 0"),
        (lambda a: sw.mix({"a": (sw.wrap([]), 1)}), ValueError, "'a' has no samples"),
        (lambda a: sw.mix({"a": (a, 1)}, per="step"), ValueError, "per='step'"),
        (lambda a: sw.mix({"a": (a, 1)}, until="last"), ValueError, "until='last'"),
        (lambda a: sw.mix({"a": (a, 1)}, until=0), ValueError, "until=0 must be at least 1"),
        (lambda a: sw.mix({"a": (a, 1)}, until=1.5), ValueError, "until=1.5"),
        (lambda a: sw.mix({"a": (a, 1)}, until={"b": 1}), ValueError, "name one of 'a'"),
        (lambda a: sw.mix({"a": (a, 1)}, until={"a": 0}), ValueError, "at least 1"),
        (lambda a: sw.mix({"a": (a, 1)}, block=0), ValueError, "block=0"),
        (lambda a: sw.mix({"a": (a, 1)}, block=10**6), ValueError, "block=1000000"),
        (lambda a: sw.mix({"a": (a, 1)}, seed=0.5), TypeError, "seed must be a whole number"),
        (lambda a: sw.mix({"a": (a, 1)}, schedule=3), TypeError, "schedule=3"),
        (lambda a: sw.mix({"a": (a, 1)}).subset([0]), TypeError, "subset of its datasets"),
        (lambda a: sw.mix({"a": (a, 1)}).filter([True]), TypeError, "subset of its datasets"),
        (lambda a: sw.concat([a, sw.mix({"a": (a, 1)})]), ValueError, "an order of its own"),
    ],
)
def test_bad_input_is_refused_with_what_to_write(make, kind, told):
    with pytest.raises(kind, match=told):
        make(numbered("a", 8))


def test_weights_are_relative_and_one_dataset_is_a_shuffle_of_it():
    parts = {"web": (numbered("web", 70), 7), "code": (numbered("code", 30), 3)}
    one, other = sw.mix(parts), two()
    positions = np.arange(one.sampler.num_samples)
    ids = [mixed.sampler.indices(0, positions) for mixed in (one, other)]
    assert np.array_equal(*ids)
    alone = sw.mix({"web": (numbered("web", 70), 1e-6)})
    batches = list(sw.DataLoader(alone, batch_size=10, output="numpy"))
    assert sorted(np.concatenate([b["n"] for b in batches]).tolist()) == list(range(70))


def test_the_weights_of_the_mapping_hold_until_a_schedule_begins():
    change = [(512, {"code": 1})]
    late, whole = two(schedule=change), two(schedule=[(0, {"web": 0.7, "code": 0.3}), *change])
    assert late.sampler.spec() == whole.sampler.spec()
    bare = {"web": numbered("web", 70), "code": numbered("code", 30, lang="py")}
    assert sw.mix(bare, schedule=[(0, {"web": 0.7, "code": 0.3}), *change]).sampler.spec() == (
        whole.sampler.spec()
    )


def test_a_dataset_that_is_shuffled_in_windows_keeps_its_windows():
    class Windowed(Dataset):
        default_shuffle = "window"
        window_shape = WindowShape(lanes=2, window=4)

    windowed = Windowed(numbered("web", 70).source)
    mixed = sw.mix({"web": (windowed, 1), "code": (numbered("code", 30), 1)})
    own = mixed.sampler.parts["web"].sampler
    assert (own.lanes, own.window) == (2, 4)
    ids = mixed.sampler.indices(0, np.arange(mixed.sampler.num_samples))
    drawn = ids[ids < 70]
    assert np.array_equal(drawn, own.indices(0, np.arange(len(drawn))))


def test_tars_of_one_window_are_a_shuffle_of_all(tmp_path):
    tars = sw.tar(make_shards(tmp_path, [20]))
    assert tars.default_shuffle == "window"
    assert sw.mix({"tar": (tars, 1)}).sampler.parts["tar"].sampler is None


def test_a_mixture_of_batches_fits_only_into_batches():
    batches = two(per="batch", until="all")
    with pytest.raises(ValueError, match="which per='sample' would tear apart"):
        sw.mix({"in": (batches, 1)})
    outer = sw.mix({"in": (batches, 1), "x": (numbered("x", 9), 1)}, per="batch", until="all")
    assert isinstance(outer, MixedDataset)
    for batch in sw.DataLoader(outer, batch_size=8, output="numpy"):
        assert len(set(batch["__source__"])) == 1
