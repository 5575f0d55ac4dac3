"""`sw.from_webdataset`: a pipeline as a dataset with the same samples, or why that can't be."""

from __future__ import annotations

import pickle
import warnings
from copy import deepcopy
from itertools import islice
from multiprocessing import Value
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import shardwise as sw
import shardwise.compat.webdataset as wds
from shardwise.sources.tar.source import TarSource
from tests.support.open_clip import (
    ResampledByEpoch,
    ShuffleByEpoch,
    log_and_continue,
    tarfile_to_samples_without_errors,
)
from tests.support.tars import make_shards, payload, sample_key, write_tar

SIZES = (6, 7, 8)
N = sum(SIZES)


@pytest.fixture
def shards(tmp_path):
    return make_shards(tmp_path, SIZES, fields=("jpg", "cls", "txt", "bin", "json"))


def pipe(shards, **options):
    return wds.WebDataset(shards, **{"shardshuffle": False, **options})


def same(left, right):
    if isinstance(left, np.ndarray | torch.Tensor):
        return np.array_equal(np.asarray(left), np.asarray(right))
    return left == right


def assert_same_samples(pipeline, *, names=None):
    """What the pipeline yields is what the dataset has, in that order."""
    dataset = sw.from_webdataset(pipeline)
    found = list(pipeline)
    assert len(found) == len(dataset)
    for there, here in zip(found, dataset, strict=True):
        if isinstance(there, dict):
            there = {k: v for k, v in there.items() if k == "__key__" or not k.startswith("__")}
        else:
            there = dict(zip(names, there, strict=True))
        if "__key__" not in there:
            # A dataset's samples have it always.
            here.pop("__key__")
        assert there.keys() == here.keys()
        assert all(same(there[name], here[name]) for name in there), (there, here)
    return dataset


def double(value):
    return value * 2


# The same samples


def test_fields_are_bytes_until_they_are_decoded(shards):
    assert_same_samples(pipe(shards))


@pytest.mark.parametrize("spec", ["rgb", "rgb8", "l", "l8", "torchrgb", "torchrgb8", "torch"])
def test_decoding_gives_the_same_values(shards, spec):
    dataset = assert_same_samples(pipe(shards).decode(spec))
    assert ("RunStages" in repr(dataset)) is False
    assert_same_samples(pipe(shards).decode(spec).map_dict(jpg=double))


def test_decoding_by_functions_and_of_some_fields(shards):
    handler = wds.handle_extension("bin", len)
    assert_same_samples(pipe(shards).decode("rgb8", handler))
    assert_same_samples(pipe(shards).decode("rgb8", only="cls"))
    assert_same_samples(pipe(shards).decode(handler, post=[]))
    assert_same_samples(pipe(shards).compose(wds.decode("rgb8")))


def test_functions_of_tensors_get_tensors(shards):
    dataset = sw.from_webdataset(
        pipe(shards).decode("torchrgb8").map(lambda s: {"kind": type(s["jpg"]).__name__})
    )
    assert dataset[0] == {"kind": "Tensor", "__key__": sample_key(0)}


def test_tuples_become_fields_by_their_names(shards):
    dataset = assert_same_samples(
        pipe(shards).to_tuple("jpg", "cls").map_tuple(len, int), names=("jpg", "cls")
    )
    # Functions of bytes are decoders, and fields that nobody wants are not read.
    assert "RunStages" not in repr(dataset)
    assert dataset.fields == ("jpg", "cls")
    assert_same_samples(
        pipe(shards).decode("rgb8").to_tuple("jpg;png;jpeg cls").map_tuple(double, double),
        names=("jpg", "cls"),
    )
    assert_same_samples(
        pipe(shards).to_tuple("cls").map_tuple(int).map_tuple(double), names=("cls",)
    )
    assert_same_samples(pipe(shards).to_tuple("bin", "bin"), names=("0", "1"))
    assert_same_samples(
        pipe(shards).to_tuple("txt", "cls").map(lambda t: (*t, 3)), names=("0", "1", "2")
    )


def test_stages_of_single_samples_run_as_they_are(shards):
    base = pipe(shards).decode()
    for pipeline in (
        base.map(lambda s: {"n": s["cls"] + 1}),
        base.map_dict(cls=double),
        base.rename(label="cls;index"),
        base.rename(label="cls", keep=False),
        base.rename_keys(("*.label", "*.cls"), must_match=False),
        base.associate(lambda key: {"more": key}),
        base.rename(label="cls").map_dict(label=double).map(lambda s: {"m": s["label"]}),
        pipe(shards).xdecode(must_decode=False),
        pipe(shards).mcached(),
    ):
        assert_same_samples(pipeline)
    assert_same_samples(base.rename(label="cls").to_tuple("label", "txt"), names=("label", "txt"))
    assert_same_samples(base.extract_keys("*.cls", "*.txt"), names=("0", "1"))


def test_what_is_no_dict_is_a_value(shards):
    dataset = sw.from_webdataset(pipe(shards).map(lambda s: int(s["cls"])))
    assert dataset[7] == {"value": 7, "__key__": sample_key(7)}


def test_a_field_that_some_samples_lack_may_be_lacking(tmp_path):
    url = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2"), ("b.txt", b"b")])
    assert_same_samples(pipe([url]).decode())
    with pytest.raises(sw.DataError, match="txt"):
        sw.from_webdataset(pipe([url]).to_tuple("cls", "txt"))[0]
    dataset = sw.from_webdataset(pipe([url]).to_tuple("txt;cls", handler=wds.warn_and_continue))
    assert [dataset[i]["txt"] for i in range(2)] == [b"1", b"b"]


def test_it_pickles_with_its_options(shards):
    dataset = sw.from_webdataset(pipe(shards).decode("rgb8").map_dict(cls=double).batched(4))
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.loader_options == dataset.loader_options
    assert copy[7]["cls"] == 14


# What it says about the loader


def options(pipeline, **more):
    return sw.from_webdataset(pipeline, **more).loader_options


def test_batches(shards):
    assert options(pipe(shards)) == {"seed": 0}
    batched = pipe(shards).batched(4)
    assert options(batched) == {"seed": 0, "batch_size": 4, "remainder": "pad"}
    assert options(pipe(shards).batched(4, partial=False))["remainder"] == "drop"
    assert options(batched.unbatched()) == {"seed": 0}


def test_shuffles_and_seeds(shards):
    assert options(pipe(shards, seed=7).shuffle(100)) == {"seed": 7, "shuffle": "window"}
    assert options(pipe(shards, shardshuffle=3))["shuffle"] == "window"
    assert options(pipe(shards, shardshuffle=3, detshuffle=True))["shuffle"] == "window"
    assert options(wds.WebDataset(shards, resampled=True))["shuffle"] == "window"


def test_epochs_count_the_samples_of_all_ranks(shards):
    assert options(pipe(shards).with_epoch(10), world_size=4)["epoch_size"] == 40
    assert options(pipe(shards).batched(5).with_epoch(3), world_size=2)["epoch_size"] == 30
    assert options(pipe(shards).with_epoch(10))["epoch_size"] == 10
    assert options(pipe(shards).repeat(3))["epoch_size"] == 3 * N
    assert "epoch_size" not in options(wds.WebDataset(shards, resampled=True))


def test_handlers(shards):
    assert options(pipe(shards).map(len, handler=wds.warn_and_continue))["on_error"] == "skip"
    assert options(pipe(shards, handler=wds.ignore_and_continue))["on_error"] == "skip"


def test_loaders(shards):
    dataset = pipe(shards, shardshuffle=2).decode("rgb8").to_tuple("jpg", "cls").batched(4)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    assert options(loader) == {
        "seed": 0,
        "shuffle": "window",
        "batch_size": 4,
        "remainder": "pad",
        "num_workers": 2,
    }
    again = loader.unbatched().shuffle(10).batched(8, partial=False).with_epoch(2)
    assert options(again, world_size=1) == {
        "seed": 0,
        "shuffle": "window",
        "batch_size": 8,
        "remainder": "drop",
        "num_workers": 2,
        "epoch_size": 16,
    }
    plain = wds.WebLoader(pipe(shards), batch_size=3, drop_last=True)
    assert options(plain) == {"seed": 0, "batch_size": 3, "remainder": "drop"}


def test_the_options_make_a_loader_that_yields_every_sample(shards):
    pipeline = pipe(shards, shardshuffle=3).shuffle(9).decode("rgb8").to_tuple("jpg", "cls", "txt")
    dataset = sw.from_webdataset(pipeline.batched(4))
    with sw.DataLoader(dataset, rank=0, world_size=1, **dataset.loader_options) as loader:
        batches = list(loader)
    keys = [k for b in batches for k, ok in zip(b["txt"], b["__valid__"], strict=True) if ok]
    assert sorted(keys) == [sample_key(g) for g in range(N)]
    assert keys != sorted(keys)
    assert batches[0]["jpg"].shape == (4, 24, 32, 3)


def test_a_collate_function_gets_samples_as_the_pipeline_has_them(shards):
    def collate(samples):
        return sum(cls for cls, _ in samples)

    pipeline = pipe(shards).decode().to_tuple("cls", "txt").batched(N, collation_fn=collate)
    dataset = sw.from_webdataset(pipeline)
    with sw.DataLoader(
        dataset, rank=0, world_size=1, num_threads=0, **dataset.loader_options
    ) as loader:
        assert list(loader) == list(pipeline)
    listed = sw.from_webdataset(pipe(shards).listed(2)).loader_options["collate"]
    assert listed([1, 2]) == [1, 2]


def test_a_sample_that_a_stage_leaves_out_is_skipped_and_counted(shards):
    def odd(sample):
        return sample if sample["cls"] % 2 else None

    dataset = sw.from_webdataset(pipe(shards).decode().map(odd).batched(4))
    with pytest.raises(sw.DataError, match="no sample"):
        dataset[0]
    settings = dataset.loader_options | {"on_error": "skip", "num_workers": 0}
    with sw.DataLoader(dataset, rank=0, world_size=1, **settings) as loader:
        classes = [int(c) for batch in loader for c in batch["cls"]]
        assert all(c % 2 for c in classes)
        assert loader.stats()["skipped"] > 0


# What programs bring along


def has_picture(sample):
    return "cls" in sample and ("png" in sample or "jpg" in sample)


def is_odd(sample):
    return int(sample["cls"]) % 2 == 1


def to_samples_in_upper_case(src):
    return (s | {"txt": s["txt"].upper()} for s in tarfile_to_samples_without_errors(src))


def every_second(src):
    return islice(src, 0, None, 2)


def open_clip(shards, *, is_resampled, source=None, reader=tarfile_to_samples_without_errors):
    epoch = Value("i", 0)
    if is_resampled:
        stages = [source or ResampledByEpoch(shards, epoch)]
    else:
        splits = [ShuffleByEpoch(epoch), wds.split_by_node, wds.split_by_worker]
        stages = [source or wds.SimpleShardList(shards), *splits]
    pipeline = wds.DataPipeline(
        *stages,
        reader,
        wds.shuffle(bufsize=5000, initial=1000),
        wds.select(has_picture),
        wds.decode("pilrgb", handler=log_and_continue),
        wds.rename(image="jpg;png;jpeg;webp", text="txt"),
        wds.map_dict(image=np.asarray, text=len),
        wds.to_tuple("image", "text"),
        wds.batched(4, partial=False),
    ).with_epoch(3)
    return wds.WebLoader(pipeline, batch_size=None, num_workers=2, persistent_workers=True)


@pytest.mark.parametrize("is_resampled", [False, True])
def test_the_pipelines_of_open_clip_become_datasets(shards, is_resampled):
    dataset = sw.from_webdataset(open_clip(shards, is_resampled=is_resampled), world_size=1)
    assert dataset.loader_options == {
        "seed": 0,
        "shuffle": "window",
        "on_error": "skip",
        "batch_size": 4,
        "remainder": "drop",
        "num_workers": 2,
        # 3 batches of 4 from each of 2 workers.
        "epoch_size": 24,
    }
    assert len(dataset) == N
    assert dataset[5]["image"].shape == (24, 32, 3)
    assert dataset[5]["text"] == len(payload(5, "txt"))


def imagenet(shards, mode, *, is_resampled=False):
    is_training = mode == "train"
    dataset = (
        wds.WebDataset(
            shards,
            repeat=is_training,
            shardshuffle=1000 if is_training else False,
            resampled=is_resampled,
            handler=wds.ignore_and_continue,
            nodesplitter=None if is_resampled else lambda src: (item for item in src),
        )
        .shuffle(5000 if is_training else 0)
        .decode("pil")
        .to_tuple("jpg;png;jpeg cls", handler=wds.ignore_and_continue)
        .map_tuple(np.asarray)
        .batched(4, partial=False)
    )
    return wds.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=2)


@pytest.mark.parametrize("is_resampled", [False, True])
def test_the_loaders_of_webdataset_imagenet_become_datasets(shards, is_resampled):
    same = {"seed": 0, "on_error": "skip", "batch_size": 4, "remainder": "drop", "num_workers": 2}
    assert sw.from_webdataset(imagenet(shards, "val")).loader_options == same
    loader = imagenet(shards, "train", is_resampled=is_resampled).with_epoch(5)
    dataset = sw.from_webdataset(loader, world_size=2)
    assert dataset.loader_options == same | {"shuffle": "window", "epoch_size": 40}
    assert dataset[3]["jpg"].shape == (24, 32, 3)
    assert dataset[3]["cls"] == 3


def test_the_datasets_of_clip_benchmark_and_clip_retrieval_become_datasets(shards):
    benchmark = wds.WebDataset(shards, nodesplitter=lambda src: src)
    benchmark = benchmark.decode(wds.autodecode.ImageHandler("pil", extensions=["png", "jpg"]))
    benchmark = benchmark.to_tuple(["webp", "png", "jpg"], "txt").map_tuple(np.asarray, str.split)
    benchmark.classes = benchmark.templates = None
    dataset = sw.from_webdataset(benchmark.batched(4))
    assert len(dataset) == N
    assert dataset[2]["txt"] == payload(2, "txt").decode().split()
    retrieval = wds.WebDataset(shards, cache_size=10**10, handler=wds.handlers.warn_and_continue)
    retrieval = retrieval.select(has_picture).map(
        lambda s: {"n": len(s["jpg"])}, handler=wds.handlers.warn_and_continue
    )
    assert sw.from_webdataset(retrieval)[2]["n"] == len(payload(2, "jpg"))


class OwnList(wds.pytorch.IterableDataset):
    def __init__(self, urls, given):
        self.urls, self.given = urls, given

    def __iter__(self):
        return ({"url": url} for url in self.given)


def test_lists_of_shards_of_the_program_are_taken_as_they_are(shards):
    for source, shuffle in (
        ([{"url": url} for url in shards], None),
        (list(shards), None),
        (OwnList(shards, shards), None),
        (OwnList(shards, shards[::-1]), "window"),
    ):
        pipeline = wds.DataPipeline()
        pipeline.append(source)
        pipeline.append(wds.tarfile_to_samples())
        dataset = sw.from_webdataset(pipeline)
        assert [s["__key__"] for s in dataset] == [sample_key(g) for g in range(N)]
        assert dataset.loader_options.get("shuffle") == shuffle
    for given in (shards[:2], [*shards, shards[0]], [1, 2, 3]):
        with pytest.raises(ValueError, match=r"OwnList: it gives \d shards of 3"):
            sw.from_webdataset(wds.DataPipeline(OwnList(shards, given), wds.tarfile_to_samples()))


def test_a_selection_is_a_subset_that_all_ranks_share(shards):
    pipeline = pipe(shards).select(is_odd)
    keys = [sample["__key__"] for sample in sw.from_webdataset(pipeline)]
    assert keys == [sample_key(g) for g in range(1, N, 2)]
    assert_same_samples(pipeline.decode("rgb8").map_dict(cls=double))
    assert_same_samples(pipe(shards).decode().map_dict(cls=double).select(lambda s: s["cls"] > 9))
    assert_same_samples(
        pipe(shards).decode().to_tuple("cls", "txt").select(lambda t: t[0] % 3),
        names=("cls", "txt"),
    )
    assert len(sw.from_webdataset(pipe(shards).select(lambda s: False))) == 0


def test_a_selection_by_the_names_of_fields_reads_no_sample(tmp_path, monkeypatch):
    url = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.jpg", b"2"), ("c.cls", b"3")])
    pipeline = pipe([url]).select(lambda s: "cls" in s and s.get("jpg") is None)
    dataset = sw.from_webdataset(pipeline)
    assert [s["__key__"] for s in dataset] == ["a", "c"]

    def no_read(*_, **__):
        raise AssertionError("a sample was read")

    monkeypatch.setattr(TarSource, "read", no_read)
    monkeypatch.setattr(TarSource, "read_sample", no_read)
    assert len(sw.from_webdataset(pipeline)) == 2
    by_key = pipe([url]).select(lambda s: s["__key__"] > "a" and any(n == "cls" for n in s))
    assert len(sw.from_webdataset(by_key)) == 1
    with pytest.raises(AssertionError, match="a sample was read"):
        sw.from_webdataset(pipe([url]).select(lambda s: s.get("cls") == b"1"))


@pytest.mark.parametrize("if_in_doubt", [True, False])
def test_a_predicate_that_catches_exceptions_chooses_what_the_pipeline_has(shards, if_in_doubt):
    def predicate(sample):
        try:
            if "0.tar" in sample["__url__"]:
                return True
            return int(sample["cls"]) % 3 == 1
        except Exception:  # noqa: BLE001 - as programs write it
            return if_in_doubt

    pipeline = pipe(shards).select(predicate)
    keys = [sample["__key__"] for sample in pipeline]
    assert [sample["__key__"] for sample in sw.from_webdataset(pipeline)] == keys
    assert 0 < len(keys) < N


def test_a_sample_that_can_not_be_read_is_an_error_though_the_predicate_catches_it(
    shards, monkeypatch
):
    def predicate(sample):
        try:
            return int(sample["cls"]) < 5
        except Exception:  # noqa: BLE001 - as programs write it
            return True

    pipeline = pipe(shards).select(predicate)
    damaged = Mock(side_effect=sw.DataError("damaged"))
    monkeypatch.setattr(TarSource, "read", damaged)
    monkeypatch.setattr(TarSource, "read_sample", damaged)
    with pytest.raises(sw.DataError, match="damaged"):
        sw.from_webdataset(pipeline)


@pytest.mark.parametrize(
    "change",
    [
        lambda sample: sample.pop("cls"),
        lambda sample: sample.update(cls=b"7") is None,
        lambda sample: sample.setdefault("own", b"x"),
        lambda sample: [sample.clear()],
    ],
)
def test_a_predicate_that_changes_samples_is_refused(shards, change):
    for pipeline in (pipe(shards), pipe(shards).map_dict(cls=bytes)):
        with pytest.raises(ValueError, match=r"select\(<lambda>\): it changes samples"):
            sw.from_webdataset(pipeline.select(change))


@pytest.mark.parametrize("is_caught", [True, False])
def test_a_damaged_sample_that_the_pipeline_leaves_out_is_skipped_and_counted(tmp_path, is_caught):
    def predicate(sample):
        try:
            return sample["json"] > 1
        except Exception:
            if is_caught:
                return False
            raise

    texts = [b"1", b"2", b"{", b"3"]
    url = write_tar(tmp_path / "a.tar", [(f"{i}.json", text) for i, text in enumerate(texts)])
    decoded = pipe([url]).decode(handler=wds.ignore_and_continue)
    for pipeline in (decoded, decoded.map(dict), decoded.select(lambda s: type(s) is dict)):
        pipeline = pipeline.select(predicate)
        dataset = sw.from_webdataset(pipeline)
        loader = sw.DataLoader(dataset, 4, **dataset.loader_options, num_threads=0)
        assert [key for batch in loader for key in batch["__key__"]] == ["1", "3"]
        assert [sample["__key__"] for sample in pipeline] == ["1", "3"]
        assert loader.stats()["skipped"] == 1


class ByItems:
    def keep(self, sample):
        return int({**sample}["cls"]) % 2

    def __call__(self, sample):
        return int(dict(dict.items(sample))["cls"]) % 2


@pytest.mark.parametrize(
    "predicate",
    [
        lambda sample: len(sample) == 8,
        lambda sample: sample["__local_path__"].endswith("0.tar"),
        lambda sample: len(pickle.loads(pickle.dumps(sample))["cls"]) == 1,
        lambda sample: len(deepcopy(sample)["cls"]) == 1,
        lambda sample: list(sample)[:3] == ["__key__", "__url__", "__local_path__"],
        lambda sample: type(sample) is dict and int(sample["cls"]) % 2,
        lambda sample: int(dict.get(sample, "cls")) % 2,
        lambda sample: eval("int(cls) % 2", sample),
        lambda sample: eval("int(sample['cls']) % 2"),
        lambda sample: "cls" in sample and [dict.get(sample, "cls") for _ in "a"] == [b"1"],
        ByItems().keep,
        ByItems(),
    ],
)
def test_predicates_get_the_entries_that_the_pipeline_has_and_may_copy_them(shards, predicate):
    pipeline = pipe(shards).select(predicate)
    keys = [sample["__key__"] for sample in pipeline]
    assert [sample["__key__"] for sample in sw.from_webdataset(pipeline)] == keys
    assert keys


def test_batches_of_a_programs_own_have_no_repeats_and_sizes_may_be_floats(shards):
    collated = pipe(shards).to_tuple("cls").batched(16 / 2, collation_fn=tuple)
    dataset = sw.from_webdataset(torch.utils.data.DataLoader(collated, batch_size=None))
    assert dataset.loader_options["batch_size"] == 8
    with sw.DataLoader(dataset, rank=0, world_size=1, **dataset.loader_options) as loader:
        assert [len(batch) for batch in loader] == [8, 8, 5] == [len(b) for b in collated]


def test_what_holds_pipelines_is_taken_or_answered_with_the_line_to_write(shards):
    pipeline = pipe(shards)
    chain = torch.utils.data.ChainDataset
    assert len(sw.from_webdataset(chain([pipeline]))) == N
    holder = OwnList([], [])
    holder.inner = pipeline
    for given, line in (
        (chain([pipeline, pipeline]), "sw.concat"),
        (wds.RandomMix([pipeline, pipeline]), "sw.mix"),
        (holder, r"sw.from_webdataset\(it.inner\)"),
        (torch.utils.data.DataLoader(holder), r"sw.from_webdataset\(it.inner\)"),
    ):
        with pytest.raises((TypeError, ValueError), match=line):
            sw.from_webdataset(given)


def test_functions_of_keys_make_a_field_of_their_own(shards):
    pipeline = pipe(shards).to_tuple("__key__", "cls").map_tuple(len, int)
    dataset = sw.from_webdataset(pipeline)
    assert dataset[3] == {"__key__": sample_key(3), "key": len(sample_key(3)), "cls": 3}


def test_an_epoch_that_no_sample_enters_is_an_error(shards):
    for pipeline in (
        pipe(shards).select(lambda s: False).with_epoch(5),
        wds.WebDataset(shards, resampled=True).select(lambda s: False),
    ):
        with pytest.raises(ValueError, match=r"let none of \d+ samples through"):
            list(pipeline)
    with pytest.warns(UserWarning, match="let none of 21 samples through"):
        assert list(pipe(shards).select(lambda s: False)) == []


def test_a_rank_that_may_have_its_own_list_hears_that_the_loader_divides(shards, as_reader):
    as_reader(0, 2)
    with pytest.warns(UserWarning, match="give all ranks the same list"):
        sw.from_webdataset(pipe(shards, nodesplitter=lambda src: src))


@pytest.mark.parametrize(
    ("options", "stage", "instead"),
    [
        ({"reader": to_samples_in_upper_case}, "to_samples_in_upper_case: its first", ".map(fn)"),
        ({"reader": every_second}, "every_second: it gives 2 shards of 3", "sw.tar(urls)"),
        ({"reader": lambda src: (1 for _ in src)}, "neither samples nor", "tarfile_to_samples()"),
        ({"source": ([1], Value("i", 0), [1.0])}, "some shards more often", "sw.mix"),
    ],
)
def test_what_a_program_does_to_shards_otherwise_is_refused_with_what_to_write(
    shards, options, stage, instead
):
    if "source" in options:
        _, epoch, weights = options["source"]
        options = {"source": ResampledByEpoch(shards, epoch, weights)}
    with pytest.raises(ValueError, match="from_webdataset: the stage") as caught:
        sw.from_webdataset(open_clip(shards, is_resampled="source" in options, **options))
    assert stage in str(caught.value)
    assert instead in str(caught.value)


# What can't be


@pytest.mark.parametrize(
    ("change", "stage", "instead"),
    [
        (lambda p: p.rsample(0.5), "rsample(0.5)", "epoch_size"),
        (lambda p: p.slice(3), "slice(3)", "dataset.subset(range(n))"),
        (lambda p: p.log_keys("x"), "log_keys", "__key__"),
        (lambda p: p.compose(iter), "iter", ".map(fn)"),
        (lambda p: p.batched(2).map(len), "map(len)", "collation_fn"),
        (lambda p: p.batched(2).batched(2), "batched(2", "one .batched(n)"),
        (lambda p: p.map(len, handler=wds.warn_and_stop), "map(len", "on_error="),
    ],
)
def test_a_stage_without_a_counterpart_is_named_with_what_to_write_instead(
    shards, change, stage, instead
):
    with pytest.raises(ValueError, match="from_webdataset: the stage") as caught:
        sw.from_webdataset(change(pipe(shards)))
    assert stage in str(caught.value)
    assert instead in str(caught.value)


def test_sources_without_a_counterpart_are_named(shards, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for pipeline, match in (
            (pipe("pipe:cat x.tar"), "is a command"),
            (pipe(shards, select_files=str), "select_files"),
            (wds.DataPipeline(wds.RandomMix([pipe(shards)])), "RandomMix"),
            (wds.DataPipeline(wds.SimpleShardList(shards)), "no stage opens"),
            (wds.DataPipeline(), "no stages"),
            (wds.WebLoader([1, 2], batch_size=1), "sw.wrap"),
        ):
            with pytest.raises(ValueError, match=match):
                sw.from_webdataset(pipeline)
    with pytest.raises(TypeError, match="install"):
        sw.from_webdataset([1])
    with pytest.raises(sw.MissingShardError):
        sw.from_webdataset(pipe(str(tmp_path / "none.tar")).decode())
