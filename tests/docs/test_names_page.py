"""The page of other libraries' names leads to names that are there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import shardwise as sw
import shardwise.torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "names.md"
ROWS = [line.split("|")[2] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`((?:sw|ds|loader)\.[\w.]+)", row)})
ARGUMENTS = sorted(
    {
        (argument, owner)
        for row in ROWS
        for arguments, owner in re.findall(r"((?:`\w+=[^`]*`(?:, )?)+) of `sw\.(\w+)`", row)
        for argument in re.findall(r"`(\w+)=", arguments)
    }
)
STANDS_FOR = {"sw": sw, "ds": sw.Dataset, "loader": sw.DataLoader}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there(name: str) -> None:
    first, *rest = name.split(".")
    value: object = STANDS_FOR[first]
    for attribute in rest:
        value = getattr(value, attribute)


@pytest.mark.parametrize(("argument", "owner"), ARGUMENTS)
def test_an_argument_is_there(argument: str, owner: str) -> None:
    assert argument in inspect.signature(getattr(sw, owner)).parameters


def test_the_page_has_what_it_is_read_for() -> None:
    assert len(NAMES) > 20
    assert len(ARGUMENTS) > 10
