"""Names of batches are refused in every source and in what functions return."""

from __future__ import annotations

import os
from inspect import signature
from typing import get_origin

import pytest

import shardwise as sw
from tests.support.tars import make_shards

# Errors, and what batches and reports are typed as.
_TYPES = (BaseException, dict)
NAMES = ["__index__", "__valid__", "__source__", "__media__"]


@pytest.mark.parametrize("name", NAMES)
def test_a_field_of_a_reserved_name_is_refused(tmp_path, name):
    (tmp_path / "a.csv").write_text(f"path,{name}\na.jpg,1\n")
    (tmp_path / "a.jpg").write_bytes(b"1")
    for dataset in (sw.wrap([{name: 1, "y": 2}]), sw.files(str(tmp_path / "a.csv"))):
        with pytest.raises(sw.DataError, match=f"has a field {name!r}, which is a name of batches"):
            next(iter(sw.DataLoader(dataset, batch_size=1)))
        with pytest.raises(sw.DataError, match="a name of batches"):
            dataset.select(name)[0]
    # The others may still be read.
    assert sw.wrap([{name: 1, "y": 2}]).select("y")[0] == {"__key__": "0", "y": 2}


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_makes_a_reserved_name_is_refused(name):
    dataset = sw.wrap([1, 2]).map(lambda sample: {**sample, name: 7})
    with pytest.raises(TypeError, match=rf"test_reserved_names.py:\d+\) made the field {name!r}"):
        dataset[0]


def test_a_wrapped_dataset_has_its_own_keys():
    assert sw.wrap([{"__key__": "a", "y": 1}])[0]["__key__"] == "a"


@pytest.mark.extension
def test_mixtures_name_the_datasets_of_their_samples():
    data = sw.wrap([{"y": 1}] * 4)
    mixed = sw.mix({"a": (data, 1), "b": (data, 1)}, until="all").map(lambda sample: {**sample})
    assert set(next(iter(sw.DataLoader(mixed, batch_size=8)))["__source__"]) == {"a", "b"}


@pytest.mark.parametrize("value", ["code.jsonl", b"code.jsonl", os.path, {"a": 1}, bytearray(3)])
def test_what_is_no_dataset_is_not_wrapped(value, tmp_path):
    with pytest.raises(TypeError, match=r"wrap\(\) needs a dataset"):
        sw.wrap(tmp_path if value is os.path else value)


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("pattern", ["", "/*.tar"])
def test_a_shard_that_lies_in_a_directory_under_two_names_is_refused(tmp_path, link, pattern):
    (url,) = make_shards(tmp_path, [3])
    link(url, tmp_path / "zlatest.tar")
    with pytest.raises(ValueError, match=r"zlatest.tar' is named twice, once as .*twice an epoch"):
        sw.tar(f"{tmp_path}{pattern}")


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: sw.wrap([1]).select("value", ordr="x"), r"select\(\) has no .* order="),
        (lambda: sw.Plan(9, batch_size=2).indices(0, 0, rnk=0), r"indices\(\) has no .* rank="),
        (lambda: sw.DataLoader([1]).explain(0, epok=1), r"explain\(\) has no .* epoch="),
        (lambda: sw.WeightedSampler.balanced([1], sed=1), r"balanced\(\) has no .* seed="),
        (lambda: sw.concat([1], [2]), r"concat\(\) has no place for \[2\]: .*are datasets="),
        (lambda: sw.torch.IterableDatset, r"did you mean sw\.torch\.IterableDataset\?"),
    ],
)
def test_a_wrong_argument_of_a_method_or_place_is_answered(call, meant):
    with pytest.raises((TypeError, AttributeError), match=meant):
        call()


def test_a_wrong_argument_names_similar_ones():
    with pytest.raises(TypeError, match=r"image\(\) has no argument resize=224; .*size="):
        sw.image(resize=224)
    with pytest.raises(TypeError, match=r"as_tuple=\('jpg', 'cls'\) of the loader"):
        sw.wrap([1]).map(lambda sample: (1, 2))[0]


@pytest.mark.extension
@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_a_table_of_a_reserved_name_is_refused(tmp_path, name):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({name: [1, 2], "y": [1, 2]}), tmp_path / "a.parquet")
    dataset = sw.parquet(str(tmp_path / "a.parquet"))
    with pytest.raises(sw.DataError, match=f"has a field {name!r}, which is a name of batches"):
        next(iter(sw.DataLoader(dataset, batch_size=1)))
    with pytest.raises(sw.DataError, match="a name of batches"):
        dataset.select(name)[0]


@pytest.mark.extension
def test_a_wrong_argument_of_clips_names_similar_ones():
    with pytest.raises(TypeError, match=r"clips\(\) has no argument num_frames=16; .* frames="):
        sw.wrap([1]).clips("mp4", num_frames=16)


@pytest.mark.extension
def test_every_public_function_and_class_refuses_an_unknown_argument_by_its_name():
    silent = []
    for name in sw.__all__:
        found = getattr(sw, name)
        origin = get_origin(found) or found
        is_call = callable(origin) and not (isinstance(origin, type) and issubclass(origin, _TYPES))
        if not is_call:
            continue
        first = [[1]] if found is sw.DataLoader else []
        with pytest.raises(TypeError) as caught:
            found(*first, zzqx=1)
        # Python's own message does where there is nothing to suggest.
        if "() has no argument zzqx=1" not in str(caught.value) and signature(found).parameters:
            silent.append((name, str(caught.value)))
    assert silent == []


@pytest.mark.extension
@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: sw.image("RGB"), "did you mean 'rgb'"),
        (lambda: sw.image(224), "did you mean size=224"),
        (lambda: sw.image(dtype="flot32"), "did you mean 'float32'"),
        (lambda: sw.array("float33"), "numpy has no such dtype; did you mean 'float32'"),
        (lambda: sw.audio(short="maks"), "did you mean 'mask'"),
        (lambda: sw.audio(rate="16k"), r"audio\(rate=\) must be a number"),
        (lambda: sw.audio(start="midle"), "'random' or seconds"),
        (lambda: sw.video(backend="pyavv"), "did you mean 'pyav'"),
        (lambda: sw.video(start="centre"), "or a frame; did you mean 'center'"),
        (lambda: sw.wrap([1]).clips("mp4", short="eror"), "did you mean 'error'"),
        (lambda: sw.tar("a.tar", check="al"), "did you mean 'all'"),
        (lambda: sw.tokens("a.bin", block=2, dtype="unit16"), "did you mean 'uint16'"),
        (lambda: sw.mix({"a": (sw.wrap([1]), 1)}, per="bach"), "did you mean 'batch'"),
        (lambda: sw.mix({"a": (sw.wrap([1]), 1)}, until="frist"), "did you mean 'first'"),
        (lambda: sw.mix({"abcd": (sw.wrap([1]), 1)}, until={"abce": 1}), "did you mean 'abcd'"),
        (lambda: sw.build(sw.wrap([1]), "a-{shard}.tar", order="ful"), "did you mean 'full'"),
        (lambda: sw.build(sw.wrap([1]), "a-{shard}.tar", on_error="recrod"), "mean 'record'"),
        (lambda: sw.buckets([1], batch_size=1, oversized="wran"), "did you mean 'warn'"),
        (lambda: sw.DataLoader([1], shuffle="windw"), "did you mean 'window'"),
        (lambda: sw.DataLoader([1], remainder="padd"), "did you mean 'pad'"),
        (lambda: sw.DataLoader([1], ragged="Pad"), "did you mean 'pad'"),
        (lambda: sw.DataLoader([1], on_error="skp"), "did you mean 'skip'"),
        (lambda: sw.DataLoader([1], executor="thread"), "did you mean 'threads'"),
        (lambda: sw.DataLoader([1], output="numpi"), "did you mean 'numpy'"),
        (lambda: sw.DataLoader([{"cls": 1}], as_tuple=("clas",)), "did you mean 'cls'"),
        (lambda: sw.wrap([{"cls": 1}]).select("clss"), "did you mean 'cls'"),
        (lambda: sw.wrap([{"cls": 1}]).column("clss"), "did you mean 'cls'"),
    ],
)
def test_an_option_that_there_is_not_is_answered_with_the_nearest(call, meant):
    with pytest.raises((TypeError, ValueError), match=meant):
        call()


def test_fields_of_keys_with_dots_are_explained(tmp_path):
    with sw.TarWriter(tmp_path / "a.tar") as writer:
        for number in range(3):
            writer.write({"__key__": f"{number}", f"{number}63.png": b""})
    for call in (sw.Dataset.select, lambda ds, name: ds.decode(**{name: bytes})):
        with pytest.raises(ValueError, match=r"first dot of a member's name, as in '063\.png'"):
            call(sw.tar(tmp_path / "a.tar"), "png")
