"""What the repository's texts say holds inside it: no strange paths, no dead links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwise as sw

ROOT = Path(__file__).resolve().parents[2]
_NOT_OURS = {"__pycache__", "build", "demo-data", "dist", "node_modules", "site"}
_TEXT = {"", ".cfg", ".css", ".ini", ".json", ".md", ".py", ".sh", ".svg", ".toml", ".txt", ".yml"}

# Put together here, so that this file does not hold what it looks for.
_OUTSIDE = {
    "a folder beside the checkout": r"\.\./" + "shared",
    "a path of one machine": r"(?<![\w.$}>])/(?:tmp|work|root|home|opt)" + r"/\w",
    "a package registry": r"(?i)py" + r"pi\.org|python" + r"hosted|registry\.np" + "mjs|simple/$",
    "a package index's option": r"(?:extra-)?index-" + r"url|find-" + "links",
}
_LINK = re.compile(r"(?<!`)!?\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)


def _texts(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name != ".ci"
            if not hidden and path.name not in _NOT_OURS and not path.name.endswith(".egg-info"):
                yield from _texts(path)
        elif path.suffix in _TEXT and path.name != ".git":
            yield path


TEXTS = list(_texts())
PAGES = [path for path in TEXTS if path.suffix == ".md"]


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("what", _OUTSIDE)
def test_no_text_points_outside_the_repository(what: str) -> None:
    found = [
        f"{_id(path)}:{number}: {line.strip()[:100]}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if re.search(_OUTSIDE[what], line)
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_the_links_of_the_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    dead = []
    for match in _LINK.finditer(text):
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = (page.parent / name).resolve() if name else page
        inside = goal.exists() and ROOT in [goal, *goal.parents]
        if not inside or (anchor and anchor not in _anchors(goal)):
            dead.append(target)
    assert dead == []


def _anchors(page: Path) -> set[str]:
    """What headings are called in links: lower case, punctuation dropped, hyphens for spaces."""
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())
        for heading in _HEADING.findall(page.read_text())
    }


def _reference() -> str:
    """The pages of the API reference, one after another."""
    return "\n\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("api*.md")))


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"- (?:[\w ]+: )?([\w-]+\.md)\n", navigation)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_every_program_of_examples_is_in_the_page_of_examples() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    folder = ROOT / "examples"
    programs = {path.name for path in folder.glob("*.py")}
    programs |= {f"trainers/{path.name}" for path in folder.glob("trainers/*.py")}
    programs -= {"trainers/__init__.py"}
    assert {name for name in programs if f'--8<-- "examples/{name}"' not in page} == set()
    assert {name for name in programs if f"| [`{name}`](#" not in page} == set()


def test_what_pages_import_from_the_library_s_parts_is_in_the_reference() -> None:
    reference = _reference()
    imported = re.compile(r"from shardwise\.(?:codecs|plan|sources|testing)[\w.]* import ([\w, ]+)")
    texts = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    names = {
        name for text in texts for found in imported.findall(text) for name in found.split(", ")
    }
    missing = {name for name in names if not re.search(rf"^::: .*\.{name}$", reference, re.M)}
    assert missing == set()
    assert len(names) > 5


def test_each_error_is_in_the_table_of_errors() -> None:
    table = (ROOT / "docs" / "errors.md").read_text()
    public = {name for name in sw.__all__ if name.endswith("Error")}
    assert {name for name in public if f"\n| `{name}` |" not in table} == {"ShardwiseError"}


def test_the_reference_has_every_public_name_in_a_paragraph_of_its_own() -> None:
    blocks = {block.strip() for block in _reference().split("\n\n")}
    missing = {name for name in sw.__all__ if f"::: shardwise.{name}" not in blocks}
    assert missing == {"__version__", "compat", "testing", "torch"}


def test_the_scripts_can_be_run() -> None:
    for name in ("demo", "test", ".ci/run"):
        path = ROOT / name
        assert path.read_text().startswith("#!/usr/bin/env bash\n")
        assert path.stat().st_mode & 0o111, f"{name} is not executable"
