"""The names of WebDataset: all there, old ones with a warning or advice, and installed."""

from __future__ import annotations

import importlib
import random
import sys

import pytest

import shardwise.compat
import shardwise.compat.webdataset as wds
from tests.support.tars import make_shards
from tests.support.torchrun import run_program

PUBLIC = [
    "Continue",
    "Decoder",
    "DecodingError",
    "gzfilter",
    "handle_extension",
    "imagehandler",
    "pytorch_weights_only",
    "torch_audio",
    "torch_loads",
    "torch_video",
    "LRUCleanup",
    "pipe_cleaner",
    "FluidInterface",
    "FluidWrapper",
    "WebDataset",
    "WebLoader",
    "MockDataset",
    "with_epoch",
    "with_length",
    "Cached",
    "LMDBCached",
    "associate",
    "batched",
    "decode",
    "detshuffle",
    "extract_keys",
    "getfirst",
    "info",
    "map",
    "map_dict",
    "map_tuple",
    "pipelinefilter",
    "rename",
    "rename_keys",
    "rsample",
    "select",
    "shuffle",
    "slice",
    "to_tuple",
    "transform_with",
    "unbatched",
    "xdecode",
    "gopen",
    "gopen_schemes",
    "ignore_and_continue",
    "ignore_and_stop",
    "reraise_exception",
    "warn_and_continue",
    "warn_and_stop",
    "RandomMix",
    "RoundRobin",
    "DataPipeline",
    "MultiShardSample",
    "ResampledShards",
    "SimpleShardList",
    "non_empty",
    "resampled",
    "shardspec",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
    "tarfile_samples",
    "tarfile_to_samples",
    "PipelineStage",
    "repeatedly",
    "ShardWriter",
    "TarWriter",
    "numpy_dumps",
    "torch_dumps",
    "tenbin",
    "utils",
    "__version__",
]
MODULES = [
    "autodecode",
    "cache",
    "compat",
    "extradatasets",
    "filters",
    "gopen",
    "handlers",
    "mix",
    "pipeline",
    "pytorch",
    "shardlists",
    "tariterators",
    "tenbin",
    "utils",
    "writer",
]
FLUENT = [
    "batched",
    "unbatched",
    "listed",
    "unlisted",
    "log_keys",
    "shuffle",
    "map",
    "decode",
    "map_dict",
    "select",
    "to_tuple",
    "map_tuple",
    "slice",
    "rename",
    "rsample",
    "rename_keys",
    "extract_keys",
    "xdecode",
    "mcached",
    "lmdb_cached",
    "with_length",
    "with_epoch",
    "repeat",
    "compose",
    "append",
    "stage",
    "close",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_there(name):
    assert hasattr(wds, name)


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_there(name):
    assert importlib.import_module(f"shardwise.compat.webdataset.{name}")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("webdataset.compat", "group_by_keys tar_file_expander autodecode filters utils"),
        ("webdataset.pipeline", "PipelineStage"),
        ("webdataset.multi", "MultiLoader"),
        ("webdataset.cache", "cached_tarfile_samples cached_tarfile_to_samples"),
        ("webdataset.gopen", "PIPE"),
        (
            "wids.wids",
            "LRUCache MMIndexedTar TarFileReader default_decoder download_and_open "
            "find_index_file iterate_ranges intersect_range intersect_ranges urldir "
            "load_dsdesc_and_resolve",
        ),
    ],
)
def test_names_that_programs_take_from_other_modules_are_there(module, names):
    found = importlib.import_module(f"shardwise.compat.{module}")
    assert all(hasattr(found, name) for name in names.split())


def test_names_of_older_versions_do_what_they_did(tmp_path):
    urls = make_shards(tmp_path, [2, 3])
    cached = wds.cached_tarfile_to_samples(cache_dir=str(tmp_path))
    samples = list(wds.DataPipeline(wds.SimpleShardList(urls), cached))
    assert len(samples) == 5
    loader = importlib.import_module("shardwise.compat.webdataset.multi").MultiLoader(
        wds.WebDataset(urls), workers=2
    )
    assert sorted(s["__key__"] for s in loader) == [s["__key__"] for s in samples]
    loader.kill()
    wids = importlib.import_module("shardwise.compat.wids.wids")
    rng = random.Random(3)
    assert sorted(wids.iterate_ranges([(0, 3), (5, 9)], rng)) == [0, 1, 2, 5, 6, 7, 8]
    assert list(wids.iterate_ranges([(5, 7), (0, 2)], rng, False, False)) == [5, 6, 0, 1]
    assert wids.intersect_ranges([(0, 3), (5, 9)], (2, 6)) == [(2, 3), (5, 6)]


@pytest.mark.parametrize("name", FLUENT)
def test_methods_are_there(name):
    assert all(hasattr(cls, name) for cls in (wds.WebDataset, wds.WebLoader, wds.FluidWrapper))


def test_gopen_is_the_function_and_the_module():
    assert callable(wds.gopen)
    assert sys.modules["shardwise.compat.webdataset.gopen"].gopen is wds.gopen


def test_install_makes_imports_find_these_modules():
    code = """
import sys
import shardwise.compat
shardwise.compat.install()
shardwise.compat.install()
import webdataset, webdataset.filters, wids
from webdataset.autodecode import Decoder
import webdataset as wds
assert webdataset is sys.modules["shardwise.compat.webdataset"]
assert webdataset.filters is sys.modules["shardwise.compat.webdataset.filters"]
assert callable(webdataset.gopen)
assert sys.modules["webdataset.gopen"].gopen is webdataset.gopen
assert wids.__name__ == "shardwise.compat.wids"
from importlib.metadata import version
assert (version("webdataset"), version("wids")) == (webdataset.__version__, wids.__version__)
assert version("numpy")
"""
    run_program("-c", code)


def test_install_refuses_to_mix_with_the_other_package(tmp_path):
    (tmp_path / "webdataset.py").write_text("")
    code = "import webdataset, shardwise.compat; shardwise.compat.install()"
    done = run_program("-c", code, env={"PYTHONPATH": str(tmp_path)}, check=False)
    assert "call shardwise.compat.install() before the first import" in done.stdout


def test_the_package_is_had_without_importing_torch():
    run_program("-c", "import shardwise as sw, sys; sw.compat; assert 'torch' not in sys.modules")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        shardwise.compat.nothing


def test_old_names_work_and_warn(tmp_path):
    urls = make_shards(tmp_path, [2, 3])
    with pytest.warns(DeprecationWarning, match="use SimpleShardList"):
        shards = wds.ShardList(urls, shuffle=True, length=2)
    assert sorted(shard["url"] for shard in shards) == urls
    assert len(shards) == 2
    with pytest.warns(DeprecationWarning, match="use WebDataset"):
        assert len(list(wds.Dataset(urls))) == 5
    with pytest.warns(DeprecationWarning, match="workersplitter"):
        assert len(list(wds.WebDataset(urls, splitter=wds.split_by_worker))) == 5
    with pytest.warns(DeprecationWarning, match="RandomMix"):
        dataset = wds.WebDataset({"datasets": [{"name": "a", "shards": urls, "choose": 1}]})
    assert len(list(dataset)) in (2, 3)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Webdataset", "did you mean 'WebDataset'"),
        ("ResizedDataset", "with_epoch"),
        ("MultiDataset", "WebLoader"),
        ("Processor", "DataPipeline"),
        ("xyzzy", "no attribute 'xyzzy'"),
    ],
)
def test_names_that_are_gone_say_what_to_use(name, advice):
    with pytest.raises(AttributeError, match=advice):
        getattr(wds, name)


def test_arguments_that_are_gone_say_what_to_use(tmp_path):
    with pytest.raises(TypeError, match=r"'length': use \.with_length"):
        wds.WebDataset("a.tar", length=5)
    with pytest.raises(ValueError, match="ShardListDataset"):
        wds.WebDataset("index.json")
    with pytest.raises(ValueError, match="does not exist"):
        wds.WebDataset("a.tar", cache_dir=tmp_path / "none")
