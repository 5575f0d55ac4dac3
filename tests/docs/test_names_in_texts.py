"""Texts name what the library has: names, arguments, options and defaults, also in code not run."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import click
import pytest

import shardwise as sw
from shardwise.cli import COMMANDS, cli
from shardwise.sources import protocol
from tests.support.pages import blocks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TEXTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
STANDS_FOR = {"sw": sw, "ds": sw.Dataset, "loader": sw.DataLoader}
# Pages of other libraries' programs have loaders of theirs.
FOREIGN = {("from-webdataset.md", "loader")}


def _codes(text: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text.read_text(), flags=re.M | re.S)
    return [block.code for block in blocks(text)] + re.findall(r"`([^`\n]+)`", prose)


def _value(node: ast.expr, text: str) -> object:
    """What `sw.a.b`, `ds.a` or `loader.a` names; None for all else, such as parts of properties."""
    if isinstance(node, ast.Name) and (text, node.id) not in FOREIGN:
        return STANDS_FOR.get(node.id)
    if isinstance(node, ast.Attribute):
        value = _value(node.value, text)
        return None if value is None or isinstance(value, property) else getattr(value, node.attr)
    return None


def _faults(code: str, text: str) -> list[str]:
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a span may be any text
        return []
    faults = []
    for node in ast.walk(tree):
        try:
            value = _value(node.func if isinstance(node, ast.Call) else node, text)  # type: ignore[arg-type]
        except AttributeError as error:
            faults.append(str(error))
            continue
        if isinstance(node, ast.Call) and inspect.isroutine(value) | inspect.isclass(value):
            names = inspect.signature(value).parameters  # type: ignore[arg-type]
            if not any(each.kind is each.VAR_KEYWORD for each in names.values()):
                given = {keyword.arg for keyword in node.keywords if keyword.arg}
                faults += [f"{ast.unparse(node)}: no {name}=" for name in given - names.keys()]
    return faults


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_the_names_and_arguments_of_the_text_are_there(text: Path) -> None:
    assert [fault for code in _codes(text) for fault in _faults(code, text.name)] == []


def test_a_name_and_an_argument_that_are_gone_are_found() -> None:
    assert _faults("sw.nothing(1)", "a.md")
    assert _faults("sw.CacheSettings('d', size=1)", "a.md")
    assert not _faults("sw.CacheSettings('d', max_bytes=1)", "a.md")


def _options(command: str) -> set[str]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    return {name for parameter in found.params for name in parameter.opts} | {"--help"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_the_command_in_texts_are_there(command: str) -> None:
    lines = re.compile(rf"shardwise {command}( [^`|\n#]*)")
    given = [line for text in TEXTS for line in lines.findall(text.read_text())]
    section = (DOCS / "commands.md").read_text().split(f"\n## {command}\n")[1].split("\n## ")[0]
    given += re.findall(r"`(--[^`]+)`", section)
    names = {name for line in given for name in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)}
    assert names <= _options(command)


def test_the_table_of_storage_options_has_their_defaults() -> None:
    section = (DOCS / "stores.md").read_text().split("| option | default |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.M)
    defaults = {field.name: field.default for field in dataclasses.fields(sw.StorageOptions)}
    units = {"none": None, "256 MiB": 256 << 20}
    assert {name for name, _ in rows} == defaults.keys() - {"config"}
    for name, default in rows:
        shown = default.strip("` ")
        assert (units[shown] if shown in units else ast.literal_eval(shown)) == defaults[name], name


def test_the_tables_of_a_source_have_its_traits_and_abilities() -> None:
    traits, abilities = (
        (DOCS / "architecture.md").read_text().split(head)[1].split("\n\n")[0]
        for head in ("| trait | meaning |", "| method | what it does |")
    )
    names = {field.name for field in dataclasses.fields(protocol.SourceTraits)}
    assert set(re.findall(r"^\| `(\w+)` \|", traits, re.M)) == names
    members = {
        name for each in vars(protocol).values() if inspect.isclass(each) for name in vars(each)
    }
    cells = [row.split(" | ")[0] for row in abilities.splitlines()]
    assert {name for cell in cells for name in re.findall(r"`(\w+)", cell)} <= members


def test_the_table_of_commands_has_them_all() -> None:
    section = (
        (DOCS / "commands.md").read_text().split("| command | what it does |")[1].split("\n\n")[0]
    )
    assert set(re.findall(r"^\| `shardwise (\w+)", section, re.M)) == set(COMMANDS)
