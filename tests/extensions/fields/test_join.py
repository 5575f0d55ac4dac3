"""Fields of one dataset beside those of another: every match once, whatever its shards are."""

from __future__ import annotations

import json
import logging
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.extensions.service.version import VersionWord
from shardwise.testing import assert_batches_equal, check_source
from tests.support.batch_servers import addresses, serving
from tests.support.properties import examples

KEYS = [f"{number:03d}" for number in range(60)]
ORDER = np.random.default_rng(0).permutation(60).tolist()


def pictures(folder, keys=KEYS):
    with sw.TarWriter(str(folder / "pictures-{shard:03d}.tar"), max_samples=17) as writer:
        for key in keys:
            writer.write({"__key__": key, "bin": key.encode() * 9, "cls": int(key)})
    return sw.tar(str(folder / "pictures-*.tar"))


def captions(folder, numbers=ORDER[:50], name="captions", text="caption"):
    with sw.TarWriter(str(folder / f"{name}-{{shard}}.tar"), max_samples=11) as writer:
        for number in numbers:
            sample = {"__key__": KEYS[number], "txt": f"{text} {KEYS[number]}"}
            writer.write({**sample, "npy": np.full(4, number, np.float32)})
    return sw.tar(str(folder / f"{name}-*.tar"))


def embeddings(folder, numbers=ORDER[:50]):
    table = pa.table({
        "id": pa.array(numbers),
        "vector": pa.FixedSizeListArray.from_arrays(
            pa.array(np.repeat(numbers, 3), pa.float32()), 3
        ),
        "score": pa.array([float(number) for number in numbers]),
    })  # fmt: skip
    pa.parquet.write_table(table, folder / "vectors.parquet", row_group_size=9)
    return sw.parquet(folder / "vectors.parquet")


def loader(data, size=8, **options):
    fixed = {"executor": "inline", "output": "numpy", "rank": 0, "world_size": 1}
    return sw.DataLoader(data, size, **{**fixed, "remainder": "uneven", **options})


def check_batch(batch):
    for key, data, text, vector in zip(
        *(batch[n] for n in ("__key__", "bin", "txt", "npy")), strict=True
    ):
        assert bytes(data) == key.encode() * 9
        if int(key) in ORDER[:50]:
            assert (text, vector.tolist()) == (f"caption {key}", [int(key)] * 4)
        else:
            assert (text, vector) == (None, None)


EXECUTORS = [
    {"executor": "inline"},
    {"executor": None, "num_workers": 0, "num_threads": 2},
    {"executor": None, "num_workers": 1, "num_threads": 1},
    {"executor": "servers"},
]


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize(("how", "size"), [("inner", 50), ("left", 60)])
def test_each_sample_has_its_match_under_every_executor(tmp_path, how, size, options):
    data = sw.join(pictures(tmp_path), captions(tmp_path).decode(txt=str, npy=sw.npy()), how=how)
    assert (len(data), data.fields) == (size, ("bin", "cls", "npy", "txt"))
    with serving(data) as servers:
        if options["executor"] == "servers":
            options = {"executor": sw.service(addresses(servers))}
        with loader(data, shuffle=True, **options) as it:
            batches = list(it)
            lost = 10 if how == "left" else 0
            assert it.stats()["missing"] == ({"npy": lost, "txt": lost} if lost else {})
            assert_batches_equal(it.batch_at(2, epoch=0), batches[2])
    seen = [key for batch in batches for key in batch["__key__"]]
    assert (len(seen), len(set(seen))) == (size, size)
    for batch in batches:
        check_batch(batch)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_sources_of_joins_keep_the_protocol(tmp_path, how):
    left, right = pictures(tmp_path), captions(tmp_path)
    objects = sw.wrap([{"__key__": key, "n": int(key), "x": [1]} for key in KEYS])
    for one, other in ((left, right), (objects, right), (left, objects), (objects, objects)):
        other = other.select(*(name for name in other.fields if name not in one.fields))
        joined = sw.join(one, other, how=how)
        check_source(joined.source)
        # Functions may write to values that a wrapped dataset holds.
        if "x" in joined.fields:
            [*joined.map(lambda sample: sample["x"].append(2) or sample)]
    assert objects[0]["x"] == [1]
    vectors = embeddings(tmp_path)
    joined = sw.join(left, vectors, how=how, by=("cls", "id"))
    check_source(joined.source)


def test_a_state_survives_other_captions_and_other_ranks(tmp_path):
    left = pictures(tmp_path)
    first = sw.join(left, captions(tmp_path).decode(txt=str), how="left")
    second = sw.join(
        left, captions(tmp_path, range(5, 60), "new", "new").decode(txt=str), how="left"
    )
    assert first.fingerprint == second.fingerprint == left.fingerprint
    with loader(first, 4, shuffle=True, world_size=2) as it:
        batches = iter(it)
        seen = [key for _ in range(3) for key in next(batches)["__key__"]]
        state = it.state_dict()
    with loader(first, 4, shuffle=True, world_size=2, rank=1) as it:
        seen += [key for _, batch in zip(range(3), it, strict=False) for key in batch["__key__"]]
    assert len(json.dumps(state)) < 1024
    for rank in range(3):
        with loader(second, 4, shuffle=True, world_size=3, rank=rank) as it:
            it.load_state_dict(state)
            for batch in it:
                for key, text in zip(batch["__key__"], batch["txt"], strict=True):
                    assert text == (f"new {key}" if int(key) >= 5 else None)
                    seen.append(key)
    assert sorted(seen) == KEYS
    inner = sw.join(left, captions(tmp_path, name="third").decode(txt=str))
    with pytest.raises(sw.StateError), loader(inner, 4, shuffle=True) as it:
        it.load_state_dict(state)


def test_a_full_match_is_the_left_dataset_whatever_how_is(tmp_path):
    left, right = pictures(tmp_path), captions(tmp_path, ORDER)
    joins = [sw.join(left, right, how=how) for how in ("inner", "left", "error")]
    assert {join.fingerprint for join in joins} == {left.fingerprint}
    assert list(joins[0]) == list(joins[1]) == list(joins[2])


def test_values_of_one_form_are_zeros_with_a_mask_where_they_are_missing(tmp_path):
    vectors = embeddings(tmp_path)
    data = sw.join(pictures(tmp_path), vectors, how="left", by=("cls", "id"))
    [batch] = loader(data, 60)
    there = np.isin(np.arange(60), ORDER[:50])
    assert (batch["vector.mask"] == there).all()
    assert (batch["score.mask"] == there).all()
    assert batch["vector"].dtype == np.float32
    assert (batch["vector"] == np.where(there, np.arange(60), 0)[:, None]).all()
    assert (batch["score"] == np.where(there, np.arange(60), 0)).all()
    inner = sw.join(pictures(tmp_path / "again"), vectors.select("vector"), by=("cls", "id"))
    [batch] = loader(inner, 60)
    assert batch["vector"].shape == (50, 3)
    assert "vector.mask" not in batch


def test_a_map_finds_zeros_of_the_type_of_the_values_that_are_there(tmp_path):
    data = sw.join(pictures(tmp_path), embeddings(tmp_path), how="left", by=("cls", "id"))
    samples = list(data)
    for name in ("score", "score.mask", "vector.mask"):
        assert len({type(sample[name]) for sample in samples}) == 1
    with loader(data, 7) as it, loader(data.map(dict), 7) as mapped:
        for batch, one in zip(it, mapped, strict=True):
            assert_batches_equal(one, batch)


@pytest.mark.parametrize("is_decoded", [False, True])
def test_a_map_finds_each_field_of_a_left_join_and_keeps_it_in_each_batch(tmp_path, is_decoded):
    left, right = pictures(tmp_path), captions(tmp_path).select("txt")
    if is_decoded:
        right = right.decode(txt=bytes)
    data = sw.join(left.select("cls"), right, how="left").map(lambda sample: {**sample, "n": 1})
    with loader(data, 3) as it:
        for batch in it:
            for key, text in zip(batch["__key__"], batch["txt"], strict=True):
                assert text == (f"caption {key}".encode() if int(key) in ORDER[:50] else None)
        assert it.stats()["missing"] == {"txt": 10}


def test_subsets_of_both_are_joined_in_the_lefts_order(tmp_path):
    left, right = pictures(tmp_path), captions(tmp_path, ORDER)
    half = left.subset([40, 3, 3, 7, 59])
    kept = right.subset([ORDER.index(n) for n in (59, 3, 12, 40)])
    assert [s["__key__"] for s in sw.join(half, kept)] == ["040", "003", "003", "059"]
    assert sw.join(half, kept)[3]["txt"] == b"caption 059"
    assert sw.join(half, kept, how="left")[3]["txt"] is None


def test_a_key_is_any_column_of_texts_or_whole_numbers(tmp_path):
    rows = [{"id": n, "text": f"{n}", "meta": {"id": n}} for n in (3, 1, 2)]
    texts = [{"name": f"{n}", "id": n, "z": n} for n in (1, 2, 3)]
    for by, names in (("id", ("text", "z")), (("text", "name"), ("id", "z"))):
        joined = sw.join(sw.wrap(rows).select("id", "text"), sw.wrap(texts).select("z"), by=by)
        assert [(s["text"], s["z"]) for s in joined] == [("3", 3), ("1", 1), ("2", 2)], names
    deep = sw.join(sw.wrap(rows), sw.wrap(texts).select("z"), by=("meta.id", "id"))
    assert [s["z"] for s in deep] == [3, 1, 2]


def test_what_both_have_is_an_error_unless_the_right_names_it(tmp_path):
    data = sw.join(pictures(tmp_path), captions(tmp_path, ORDER))
    new = captions(tmp_path, ORDER, "new", "new")
    for left, right in (
        (data, new),
        (data.decode(txt=str), new),
        (data.decode(txt=str), new.select("txt")),
    ):
        with pytest.raises(ValueError, match=r"both datasets have a field '(npy|txt)'.*select"):
            sw.join(left, right)
    renewed = sw.join(data, new.select("txt"))
    assert renewed.fields == ("bin", "cls", "npy", "txt")
    assert renewed[7]["txt"] == b"new 007"
    kept = sw.join(data.select("bin", "txt"), new.select("npy"))
    assert kept.fields == ("bin", "txt", "npy")
    assert kept[7]["txt"] == b"caption 007"


def test_doubled_keys_are_errors_that_name_one(tmp_path):
    left, right = pictures(tmp_path), captions(tmp_path, ORDER)
    doubled = sw.concat([right, captions(tmp_path, [7], "more")])
    with pytest.raises(
        DataError, match=r"of the right dataset has the key '007' .1 samples"
    ) as caught:
        sw.join(left, doubled)
    assert caught.value.url.endswith("more-0.tar")
    with pytest.raises(DataError, match=r"of the left dataset has the key '000' .120 samples"):
        sw.join(sw.concat([left, left]), right)
    # Of samples that are not joined, keys may be anything.
    assert len(sw.join(left, doubled.subset(range(60)))) == 60


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a, b: sw.join(a, b, how="outer"), ValueError, "how='outer'"),
        (lambda a, b: sw.join(a, [1]), TypeError, r"the right one is \[1\]: wrap it"),
        (lambda a, b: sw.join(a, b, by=3), TypeError, "by=3"),
        (lambda a, b: sw.join(a, b, by=("cls", "txt", "x")), TypeError, "by="),
        (lambda a, b: sw.join(a, b, by="nothing"), ValueError, "no field 'nothing'"),
        (lambda a, b: sw.join(a, b, by=("cls", "txt")), TypeError, "int64 on the left and <U"),
        (lambda a, b: sw.join(a.map(dict), b), ValueError, "the left dataset is a mixture, or"),
        (lambda a, b: sw.join(a, b.map(dict)), ValueError, "the right dataset is a mixture, or"),
        (lambda a, b: sw.join(sw.mix({"a": (a, 1)}), b), ValueError, "left dataset is a mixture"),
        (lambda a, b: sw.join(a, b, on="cls"), TypeError, "no argument on="),
        (lambda a, b: sw.join(a, b, by=("bin", "txt")), ValueError, "60 of 60 samples"),
        (lambda a, b: sw.join(a, b, how="error"), DataError, "10 of 60 samples have no match"),
    ],
)
def test_what_can_not_be_joined_is_refused(tmp_path, call, error, message):
    left = pictures(tmp_path).decode(bin=lambda data: bytes(data).decode())
    with pytest.raises(error, match=message):
        call(left, captions(tmp_path))


def test_no_captions_yet_are_none_and_no_pictures_are_no_samples(tmp_path, caplog):
    left, none = pictures(tmp_path), captions(tmp_path, ORDER).subset([])
    with caplog.at_level(logging.WARNING):
        assert len(sw.join(left, none)) == 0
        for sample in sw.join(left, none, how="left"):
            assert sample.keys() == {"__key__", "bin", "cls", "npy", "txt"}
            assert (sample["txt"], sample["npy"]) == (None, None)
    assert "60 of 60 samples have no match among 0, and are left out" in caplog.text
    assert len(sw.join(left.subset([]), captions(tmp_path, ORDER, "other"), how="error")) == 0


def test_matches_are_kept_and_mapped_and_belong_to_both_datasets(tmp_path):
    data = sw.join(pictures(tmp_path), captions(tmp_path))
    [kept] = (tmp_path / ".shardwise").glob("join-*.swc")
    again = sw.join(sw.tar(str(tmp_path / "pictures-*.tar")), captions_again(tmp_path))
    assert not again.source._rows.flags.owndata
    assert not again.transforms.indices.flags.owndata
    assert list(again) == list(data) == list(pickle.loads(pickle.dumps(again)))
    sw.join(data, captions(tmp_path, ORDER, "new").select("txt"))
    sw.join(data.subset([3, 1]), captions(tmp_path, ORDER, "newer").select("txt"))
    sw.join(data.subset([1, 3]), sw.tar(str(tmp_path / "newer-*.tar")).select("txt"))
    assert len(list((tmp_path / ".shardwise").glob("join-*.swc"))) == 4
    kept.unlink()
    assert list(
        sw.join(sw.tar(str(tmp_path / "pictures-*.tar")), captions_again(tmp_path))
    ) == list(data)


def test_columns_recipes_and_lists_of_keys_see_through_a_join(tmp_path):
    left = pictures(tmp_path)
    old = sw.join(left, captions(tmp_path))
    new = sw.join(left, captions(tmp_path, ORDER[:50], "new", "new"))
    assert old.fingerprint == new.fingerprint
    assert old.column("txt")[0] != new.column("txt")[0]
    assert sw.concat([old]).column("txt")[0] != sw.concat([new]).column("txt")[0]
    assert VersionWord.of(old) != VersionWord.of(new)
    with loader(old, shuffle=True) as it:
        step = it.explain(1)
        batch = it.batch_at(1)
        assert step.keys == batch["__key__"]
        assert None not in step.byte_ranges
        assert step.urls == [left.url_of(int(key)) for key in step.keys]
        assert (0, 1, 0, 3) in it.places_of(step.keys[3], epochs=range(1))


def test_damage_names_the_shard_of_the_field_and_the_sample_of_the_join(tmp_path):
    right = captions(tmp_path, ORDER[:50])
    len(right)
    joined = sw.join(pictures(tmp_path), right.decode(txt=sw.json()))
    index = next(i for i in range(50) if joined.url_of(i).endswith("pictures-002.tar"))
    number = int(joined.select()[index]["__key__"])
    with pytest.raises(DataError, match="raised") as caught:
        joined[index]
    shard = f"captions-{ORDER.index(number) // 11}.tar"
    assert (caught.value.url.rpartition("/")[2], caught.value.index) == (shard, index)
    path = tmp_path / shard
    path.write_bytes(path.read_bytes()[:512])
    joined = sw.join(sw.tar(str(tmp_path / "pictures-*.tar")), right)
    with pytest.raises(DataError) as caught:
        joined.load(np.arange(index, 50))
    bad = caught.value
    assert bad.url is not None
    assert bad.url.endswith(shard)
    assert ORDER.index(int(joined.select()[bad.index]["__key__"])) // 11 == int(shard[9])


@given(st.lists(st.integers(0, 40), unique=True), st.lists(st.integers(0, 40), unique=True))
@settings(max_examples=examples(60), deadline=None)
def test_a_join_is_a_dictionarys_look_up(left, right):
    a = sw.wrap([{"__key__": f"{n}", "a": n} for n in left])
    b = sw.wrap([{"__key__": f"{n}", "b": -n} for n in right])
    both = [n for n in left if n in right]
    if both or not left or not right:
        assert [(s["a"], s["b"]) for s in sw.join(a, b)] == [(n, -n) for n in both]
        found = [s.get("b") for s in sw.join(a, b, how="left")]
        assert found == [-n if n in right else None for n in left]


def captions_again(folder):
    return sw.tar(str(folder / "captions-*.tar"))
