"""The names of WebDataset: all there, old ones with a warning or advice, and installed."""

from __future__ import annotations

import ast
import importlib
import json
import random
from pathlib import Path

import pytest

import shardwise.compat
import shardwise.compat.webdataset as wds
from tests.support.ranks import run_forked
from tests.support.suites import unpack_package
from tests.support.tars import make_shards
from tests.support.torchrun import run_program


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upstream")
    unpack_package("webdataset-1.0.2", folder, "src")
    return folder / "webdataset-1.0.2" / "src" / "webdataset"


def body_of(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


def test_the_packages_names_are_there(upstream):
    imports = [each for each in body_of(upstream / "__init__.py") if hasattr(each, "names")]
    names = [alias.name for each in imports for alias in each.names]
    assert len(names) > 60
    assert [name for name in [*names, "__version__"] if not hasattr(wds, name)] == []


def test_the_packages_modules_are_there(upstream):
    names = {path.stem for path in upstream.glob("*.py")} - {"__init__", "typecheck"}
    assert len(names) > 15
    for name in names:
        assert importlib.import_module(f"shardwise.compat.webdataset.{name}")


@pytest.mark.parametrize("of", ["compat.FluidInterface", "pipeline.DataPipeline"])
def test_the_methods_of_pipelines_are_there(upstream, of):
    module, _, kind = of.partition(".")
    body = body_of(upstream / f"{module}.py")
    methods = next(each.body for each in body if getattr(each, "name", None) == kind)
    names = [each.name for each in methods if isinstance(each, ast.FunctionDef)]
    assert len(names) > 10
    for cls in (wds.WebDataset, wds.WebLoader, wds.FluidWrapper):
        assert [name for name in names if not hasattr(cls, name)] == []


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


TABLE = json.loads((Path(__file__).parent / "data" / "webdataset_names.json").read_text())


def bound_names(body: list[ast.stmt]) -> set[str]:
    """The public names that a module defines, or imports from its own package."""
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            parts = [part for target in node.targets for part in ast.walk(target)]
            found |= {
                part.id
                for part in parts
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
        elif isinstance(node, ast.ImportFrom) and (node.level or "webdataset" in str(node.module)):
            found |= {alias.asname or alias.name for alias in node.names}
    return {name for name in found if not name.startswith("_")}


def test_the_table_of_names_is_that_of_the_package(upstream):
    table = TABLE["1.0.2"]
    modules = {path.stem for path in upstream.glob("*.py")}
    assert {name or "__init__" for name in table} == modules
    for name, names in table.items():
        assert bound_names(body_of(upstream / f"{name or '__init__'}.py")) <= set(names.split())


@pytest.mark.parametrize("version", sorted(TABLE))
def test_every_public_name_is_there_or_says_what_to_use(version):
    silent = []
    for module, names in TABLE[version].items():
        full = f"shardwise.compat.webdataset.{module}".rstrip(".")
        found = importlib.import_module(full)
        for name in names.split():
            try:
                getattr(found, name)
            except AttributeError as error:
                if ": use " not in str(error):
                    silent.append(f"{module}.{name}")
    assert silent == []


def test_names_that_old_programs_import_do_what_they_did(tmp_path):
    urls = make_shards(tmp_path, [2, 3])
    assert wds.filters.compose(int, abs)("-3") == 3
    source = wds.SimpleShardList(urls)
    samples = wds.filters.pipeline(source, wds.tarfile_to_samples(), wds.map(len))
    assert len(list(samples)) == 5
    assert wds.utils.make_seed(1, 2) == 33
    assert wds.utils.make_seed("a") == wds.utils.make_seed("a") != wds.utils.make_seed("b")
    assert wds.utils.lookup_sym("compose", [".filters"]) is wds.filters.compose
    assert list(wds.utils.repeatedly0([1, 2, 3], 2, 2)) == [1, 2, 1, 2]
    assert wds.filters.parse_field_spec("jpg;png cls") == [["jpg", "png"], ["cls"]]
    (opened, _) = wds.cache.cached_url_opener(source, cache_dir=str(tmp_path))
    assert opened["url"] == urls[0]
    assert opened["stream"].read(1)
    opener = importlib.import_module("shardwise.compat.webdataset.gopen")
    with opener.gopen_file(f"file:{urls[0]}") as stream:
        assert not opener.set_options(stream, timeout=3)
    assert wds.tariterators.meta_prefix == wds.tariterators.meta_suffix == "__"
    assert wds.writer.bytestr(3) == b"3"


def test_the_old_list_of_shards_has_its_own_arguments_and_shuffles():
    urls = [f"{number}.tar" for number in range(20)]
    with pytest.warns(DeprecationWarning, match="use SimpleShardList"):
        make = wds.PytorchShardList
    shards = [shard["url"] for shard in make(urls)]
    assert shards != urls
    assert sorted(shards) == sorted(urls)
    options = {"split_by_node": False, "split_by_worker": False, "verbose": True}
    assert [shard["url"] for shard in make(urls, False, False, **options)] == urls
    with pytest.raises(TypeError, match=r"^PytorchShardList\(\) got an unexpected"):
        make(urls, nodesplitter=None)


def test_install_makes_imports_find_these_modules(tmp_path):
    code = """
import sys
import shardwise.compat
shardwise.compat.install()
shardwise.compat.install()
import webdataset, webdataset.filters, webdataset.cborsiterators, wids
from webdataset.autodecode import Decoder
import webdataset as wds
assert webdataset is sys.modules["shardwise.compat.webdataset"]
assert webdataset.filters is sys.modules["shardwise.compat.webdataset.filters"]
assert callable(webdataset.gopen)
assert sys.modules["webdataset.gopen"].gopen is webdataset.gopen
assert wids.__name__ == "shardwise.compat.wids"
import video2dataset
from video2dataset.dataloader import get_video_dataset
assert get_video_dataset is shardwise.compat.video2dataset.get_video_dataset
from importlib.metadata import version
for package in (webdataset, wids, video2dataset):
    name = package.__name__.rpartition(".")[2]
    assert version(name) == package.__version__
assert version("numpy")
"""
    run_forked(tmp_path, code)


def test_worker_processes_find_the_installed_packages(tmp_path):
    (tmp_path / "library.py").write_text(
        "import webdataset.filters, webdataset as wds, wids\n"
        "from importlib.metadata import version\n"
        "assert wds.filters.__spec__.name == wds.__spec__.name + '.filters'\n"
        "assert version('wids') == wids.__version__\n"
        "def double(sample):\n"
        "    return {**sample, 'n': 2 * sample['n'], 'name': wds.__name__}\n"
    )
    code = """
import shardwise as sw
sw.compat.install()
from library import double
data = sw.wrap([{"n": n} for n in range(4)]).map(double)
with sw.DataLoader(data, batch_size=4, num_workers=1, output="numpy") as loader:
    [batch] = loader
print(batch["n"].tolist(), batch["name"][0])

def needs_none(sample):
    import sys
    return {**sample, "torch": "torch" in sys.modules}

data = sw.wrap([{"n": n} for n in range(4)]).map(needs_none)
with sw.DataLoader(data, batch_size=4, num_workers=1, output="numpy") as loader:
    [batch] = loader
print(batch["torch"].any())
"""
    said = run_forked(tmp_path, code)
    assert "[0, 2, 4, 6] shardwise.compat.webdataset\nFalse" in said


def test_worker_processes_that_import_none_of_the_packages_do_not_import_torch(tmp_path):
    code = """
import sys
import shardwise as sw
sw.compat.install()
from importlib.metadata import entry_points, version
def look(sample):
    entry_points(group="shardwise.sources")
    return {**sample, "has_torch": "torch" in sys.modules, "version": version("wids")}
data = sw.wrap([{"n": n} for n in range(4)]).map(look)
with sw.DataLoader(data, batch_size=4, num_workers=1, output="numpy") as loader:
    [batch] = loader
print(batch["has_torch"].any(), batch["version"][0])
"""
    assert "False 0.1.11" in run_forked(tmp_path, code)


def test_install_refuses_to_mix_with_the_other_package(tmp_path):
    (tmp_path / "webdataset.py").write_text("")
    code = "import webdataset, shardwise.compat; shardwise.compat.install()"
    said = run_forked(tmp_path, code, check=False)
    assert "call shardwise.compat.install() before the first import" in said


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
