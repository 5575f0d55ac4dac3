"""The site of the documentation: built without a warning, and no page is wider than its window."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Scheme, measure_pages
from tests.support.server_process import skip_or_fail

ROOT = Path(__file__).resolve().parents[2]
DESKTOP, PHONE = 1280, 390
# One of each kind: prose with a picture, tables, signatures, output of commands.
SOME = ["./", "from-torch/", "api-loader/", "commands/"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
COLOURS = {"light": "default", "dark": "slate"}
WIDE = '<!doctype html><title>wide</title><body style="margin: 0"><p style="width: 1200px">wide'


# A site of these alone, which takes half the time; their links to others are no warnings.
CONFIG = f"""
INHERIT: {ROOT}/mkdocs.yml
docs_dir: {ROOT}/docs
nav: [index.md, from-torch.md, api-loader.md, commands.md]
exclude_docs: |
  *.md
  *.py
  !/index.md
  !/from-torch.md
  !/api-loader.md
  !/commands.md
"""


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages `SOME`, built as strictly as all."""
    folder = tmp_path_factory.mktemp("some")
    (folder / "some.yml").write_text(CONFIG)
    return _build(folder / "site", "--config-file", folder / "some.yml")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as strictly as by hand."""
    return _build(tmp_path_factory.mktemp("site"))


def _build(folder: Path, *options: str | Path) -> Path:
    if find_spec("mkdocs") is None:
        skip_or_fail("mkdocs is not installed")
    # Not --quiet: mkdocs would count no warnings then, and --strict would pass everything.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder, *options],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def _pages(site: Path) -> list[str]:
    return sorted(f"{path.parent.relative_to(site)}/" for path in site.rglob("index.html"))


# One test by default: each worker of pytest would build the site for its own.
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_pages_fit_desktops_and_phones(scheme: Scheme, some: Path, tmp_path: Path) -> None:
    (some / "wide").mkdir(exist_ok=True)
    (some / "wide" / "index.html").write_text(WIDE)
    *found, wide_on_desktop, wide_on_phone = _measured(some, [*SOME, "wide/"], scheme, tmp_path)
    assert [each for each in found if each["over"] > 0] == []
    # The ruler is right.
    assert (wide_on_desktop["over"], wide_on_phone["over"]) == (0, 810)
    assert "width: 1200px" in wide_on_phone["who"][0]


@pytest.mark.long  # 60 pages
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_page_fits_desktops_and_phones(scheme: Scheme, site: Path, tmp_path: Path) -> None:
    pages = [f"{path.parent.relative_to(site)}/" for path in site.glob("[!w]*/index.html")]
    assert len(pages) > 40
    for first in range(0, len(pages), 12):
        found = _measured(site, pages[first : first + 12], scheme, tmp_path)
        assert [each for each in found if each["over"] > 0] == []


def _measured(site: Path, pages: list[str], scheme: Scheme, folder: Path) -> list[dict[str, Any]]:
    found = measure_pages(site, pages, [DESKTOP, PHONE], scheme, folder)
    assert len(found) == 2 * len(pages)
    assert {each["scheme"] for each in found if each["title"] != "wide"} == {COLOURS[scheme]}
    return found
