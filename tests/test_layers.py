"""Imports point one way, and importing the library is cheap; see docs/architecture.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.layers import Module, broken_rules, cycles, load, parse

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "shardwise"


@pytest.fixture(scope="module")
def package() -> list[Module]:
    return load(PACKAGE)


def test_all_imports_keep_the_layers(package: list[Module]) -> None:
    assert broken_rules(package) == []


def test_no_modules_import_each_other_in_a_ring(package: list[Module]) -> None:
    assert cycles(package) == []


def test_no_file_is_called_utils() -> None:
    # `webdataset.utils` is WebDataset's own name.
    files = set(PACKAGE.rglob("*.py")) - {PACKAGE / "compat" / "webdataset" / "utils.py"}
    names = {path.stem for path in files} | {path.name for path in PACKAGE.iterdir()}
    assert not names & {"utils", "util", "helpers", "misc", "common"}


# The rules themselves: each must be able to fail.
_EMPTY = [
    parse(name, "", is_package=True)
    for name in (
        "shardwise", "shardwise.plan", "shardwise.storage", "shardwise.codecs",
        "shardwise.codecs.image", "shardwise.codecs.text", "shardwise.sources",
        "shardwise.sources.tar", "shardwise.sources.tar.index.shard_index",
        "shardwise.sources.wrap.source", "shardwise.extensions.tables.parquet.source",
        "shardwise.extensions.tables", "shardwise.extensions.media", "shardwise.extensions",
        "shardwise.compat", "shardwise.compat.webdataset", "shardwise.sources.manifest",
        "shardwise.engine", "shardwise.loader", "shardwise.torch",
        "shardwise.tensors", "shardwise.base.ranks", "shardwise.cli",
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("importer", "text"),
    [
        ("shardwise.plan.new", "from shardwise.storage import open_file"),
        ("shardwise.plan.new", "from shardwise import storage"),
        ("shardwise.plan.new", "from ..storage import open_file"),
        ("shardwise.plan.new", "import shardwise.storage"),
        ("shardwise.plan.new", "def f():\n    import shardwise.storage"),
        ("shardwise.storage.new", "import shardwise.codecs"),
        ("shardwise.sources.new", "from shardwise.sources.tar import index"),
        ("shardwise.sources.tar.new", "from shardwise.sources.wrap.source import WrapSource"),
        (
            "shardwise.extensions.tables.lance.new",
            "import shardwise.extensions.tables.parquet.source",
        ),
        ("shardwise.codecs.text", "from shardwise.codecs.image import image"),
        ("shardwise.codecs.text", "from shardwise.codecs import image"),
        ("shardwise.codecs.text", "from shardwise.codecs import other"),
        ("shardwise.engine.new", "from shardwise.sources.tar import TarSource"),
        ("shardwise.engine.new", "from shardwise.codecs import image"),
        ("shardwise.engine.new", "from shardwise.base.ranks import discover"),
        ("shardwise.engine.new", "import shardwise"),
        ("shardwise.loader", "from shardwise.tensors import convert"),
        ("shardwise.loader", "import torch"),
        ("shardwise.loader", "class A:\n    from torch import nn"),
        ("shardwise.plan.new", "import os\nos.environ['A']"),
        ("shardwise.plan.new", "from os import environ"),
        ("shardwise.novelty", "import shardwise.plan"),
        ("shardwise.cli.new", "def f():\n    from shardwise.extensions import tables"),
        ("shardwise.loader.new", "from shardwise.compat import webdataset"),
        ("shardwise.extensions.media.new", "from shardwise.extensions import tables"),
        ("shardwise.extensions.media.new", "from shardwise.compat import webdataset"),
    ],
)
def test_a_rule_notices(importer: str, text: str) -> None:
    assert broken_rules([*_EMPTY, parse(importer, text)]) != []


@pytest.mark.parametrize(
    ("importer", "text"),
    [
        ("shardwise.loader", "def f():\n    from shardwise.tensors import convert"),
        ("shardwise.sources.tar.new", "from shardwise.sources.tar import index"),
        ("shardwise.sources.tar.new", "from shardwise.sources.manifest import Manifest"),
        ("shardwise.engine.new", "from shardwise.sources.manifest import Manifest"),
        ("shardwise.codecs.image_headers", "from shardwise.codecs.image import image"),
        ("shardwise.engine.new", "def f():\n    import torch"),
        ("shardwise.torch.new", "import torch"),
        ("shardwise.extensions.media.new", "from shardwise.sources.tar import TarSource"),
        ("shardwise.compat.new", "from shardwise.extensions import media"),
        ("shardwise.base.ranks", "import os\nos.environ['A']"),
    ],
)
def test_what_is_allowed_passes(importer: str, text: str) -> None:
    assert broken_rules([*_EMPTY, parse(importer, text)]) == []


def test_a_ring_of_imports_is_found() -> None:
    back = [
        "import shardwise.a",
        "def f():\n    import shardwise.a",
        "if TYPE_CHECKING:\n    import shardwise.a",
    ]
    for text in back:
        ring = [parse("shardwise.a", "import shardwise.b"), parse("shardwise.b", text)]
        assert len(cycles(ring)) == 1
