"""The names of wids: all there, or with what to use."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

from tests.compat.test_names import bound_names
from tests.support.suites import unpack_package

TABLE = json.loads((Path(__file__).parent / "data" / "wids_names.json").read_text())


def test_the_table_of_names_is_that_of_the_package(tmp_path):
    unpack_package("wids-0.1.11", tmp_path, "src")
    paths = {path.stem: path for path in (tmp_path / "wids-0.1.11/src/wids").glob("*.py")}
    assert {name or "__init__" for name in TABLE} == paths.keys()
    for name, names in TABLE.items():
        body = ast.parse(paths[name or "__init__"].read_text()).body
        assert bound_names(body) <= set(names.split())


@pytest.mark.parametrize("module", TABLE)
def test_every_public_name_is_there_or_says_what_to_use(module):
    found = importlib.import_module(f"shardwise.compat.wids.{module}".rstrip("."))
    silent = []
    for name in TABLE[module].split():
        try:
            getattr(found, name)
        except AttributeError as error:
            if ": use " not in str(error):
                silent.append(name)
    assert silent == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        found.nothing
