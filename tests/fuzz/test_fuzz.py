"""Damaged input gives whole values or an error of this library, whatever the damage is.

A fifth of the cases by default; `python -m tests.fuzz --minutes 30` looks for longer.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.__main__ import CORPUS, strategies
from tests.fuzz.checks import check, end_children
from tests.fuzz.damage import Case

EXAMPLES = {
    "headers": 250, "lists": 400, "parquet": 200, "index": 300, "manifest": 300, "state": 300,
}  # fmt: skip
KEPT = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.fixture(scope="module", autouse=True)
def children():
    yield
    end_children()


@pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("target", sorted(strategies))
def test_damage_is_an_error_that_says_for_what(target, share, tmp_path):
    @settings(
        max_examples=EXAMPLES.get(target, 60) // share, suppress_health_check=list(HealthCheck)
    )
    @given(strategies[target]())
    def attempt(case: Case) -> None:
        check(target, case, tmp_path)

    attempt()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_once_stays_found(path, tmp_path):
    name = path.name.partition("-")[2]
    check(path.parent.name, (name, path.read_bytes()), tmp_path)
