"""The scan for records: short ones and long ones, near and far."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.extensions.formats.tfrecord.scan import find_records
from shardwise.storage import open_file
from shardwise.testing import check_source
from tests.support.counted_file import CountedFile
from tests.support.tfrecords import record_file


def write(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(record_file(records))
    return path


RECORDS = {
    "short": [bytes([i]) * (i % 7) for i in range(100)],
    "long": [bytes([i]) * 70_000 for i in range(6)],
    "mixed": [bytes([i]) * (90_000 if i % 9 == 0 else i) for i in range(30)],
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_any_length_are_found(tmp_path, kind):
    path = write(tmp_path / "x.tfrecord", RECORDS[kind])
    ds = sw.tfrecord(path, features=())
    assert [sample["record"] for sample in ds] == RECORDS[kind]
    check_source(ds.source)


def test_long_records_are_stepped_over(tmp_path):
    path = write(tmp_path / "x.tfrecord", [bytes(2_000_000)] * 30)
    file = CountedFile("s3://b/x.tfrecord", path, tmp_path / "log")
    ends, _ = find_records(file, str(tmp_path / "index")).places
    assert len(ends) == 30
    num_bytes = sum(length * times for (_, length), times in file.reads().items())
    assert num_bytes < path.stat().st_size / 2


def test_a_place_that_cannot_be_written_costs_a_scan_and_no_error(tmp_path):
    path = write(tmp_path / "x.tfrecord", RECORDS["short"])
    (tmp_path / "occupied").write_text("no directory")
    for _ in range(2):
        records = find_records(open_file(str(path)), str(tmp_path / "occupied" / "index")).places
        assert records.shape == (2, 100)
