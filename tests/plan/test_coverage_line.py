"""A line of coverage is foreign until it was read: what no account can hold is refused."""

from __future__ import annotations

import json

import pytest

import shardwise as sw
from shardwise.plan.coverage_line import CoverageLine


@pytest.fixture
def entries(tmp_path):
    data = sw.wrap(range(7))
    options = {"rank": 0, "world_size": 1, "num_workers": 0, "output": "numpy"}
    with sw.DataLoader(data, batch_size=2, coverage=str(tmp_path), **options) as loader:
        list(loader)
    [path] = tmp_path.iterdir()
    return json.loads(path.read_text().splitlines()[0])


def test_a_line_is_read_as_it_was_written(entries):
    text = json.dumps(entries)
    assert json.loads(CoverageLine.from_text(text).to_text()) == entries


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", "-1e999"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_number_that_is_not_finite_is_refused_at_any_depth(entries, depth, number):
    value = '"?"'
    for _ in range(depth):
        value = f'[{{"x": {value}}}]'
    entries["order"] = {"kind": "PLACE"}
    text = json.dumps(entries).replace('"PLACE"', value.replace('"?"', number))
    with pytest.raises(ValueError, match="not finite"):
        CoverageLine.from_text(text)


@pytest.mark.parametrize("text", ["[" * 5000, "{", "null", "9" * 5000, '{"version": {}}'])
def test_what_is_no_line_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"its? "):
        CoverageLine.from_text(text)
