"""Forked children of a process that used Lance: they read, and nothing of Lance is touched."""

import multiprocessing
import os
import signal

import lance
import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

import shardwise as sw
from shardwise.base.errors import DataError, MissingShardError, StorageError
from shardwise.extensions.tables.lance import table as table_module
from shardwise.extensions.tables.lance.source import LanceSource
from tests.support.forks import in_child
from tests.support.lance_tables import make_table

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")
PATIENCE_S = 120


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("tables") / "rows.lance", num_rows=300)


def test_a_child_reads_what_the_parent_reads_and_touches_nothing_of_lance(table, monkeypatch):
    ds = sw.lance(table)
    parent = [ds[i]["id"] for i in (5, 250)]

    def untouched(*args, **kwargs):
        raise AssertionError("Lance is used in a forked child")

    def read():
        monkeypatch.setattr(table_module.lance, "dataset", untouched)
        fresh = sw.lance(table, filter="id >= 100")
        return [ds[i]["id"] for i in (5, 250)], [s["id"] for s in fresh], os.getpid()

    found, fresh, pid = in_child(read)
    assert found == parent
    assert fresh == list(range(100, 300))
    assert pid != os.getpid()
    assert ds[7]["id"] == 7


def test_torchs_forked_workers_give_the_loaders_order(table):
    options = {"batch_size": 32, "shuffle": True, "remainder": "uneven", "rank": 0, "world_size": 1}
    ds = sw.lance(table, columns=("id",))
    with sw.DataLoader(ds, executor="inline", **options) as loader:
        wanted = [batch["id"].tolist() for batch in loader]
    workers = torch.utils.data.DataLoader(
        sw.torch.IterableDataset(ds, **options),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
    )
    for _ in range(2):
        assert [batch["id"].tolist() for batch in workers] == wanted


def test_blobs_are_read_in_a_child(tmp_path):
    field = pa.field("img", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table({"img": pa.array([b"a", None, b"ccc"], pa.large_binary())}, pa.schema([field]))
    lance.write_dataset(data, str(tmp_path / "t.lance"), data_storage_version="2.1")
    ds = sw.lance(tmp_path / "t.lance")
    assert ds[2]["img"] == b"ccc"
    assert in_child(lambda: [s.get("img") for s in ds]) == [b"a", None, b"ccc"]


def test_errors_are_the_same_in_a_child(table, tmp_path):
    ds = sw.lance(table)
    ds[0]
    with pytest.raises(DataError, match=r"filter='ids > 3'.*'id', 'mod7'"):
        in_child(lambda: len(sw.lance(table, filter="ids > 3")))
    with pytest.raises(MissingShardError, match="no version 9 of the table: there are 1"):
        in_child(lambda: len(sw.lance(table, version=9)))


def test_a_childs_child_reads_too(table):
    ds = sw.lance(table)
    ds[0]

    def read():
        mine = ds[1]["id"]
        return mine, in_child(lambda: ds[2]["id"]), ds[3]["id"]

    assert in_child(read) == (1, 2, 3)


def helpers_of(pid):
    return [p for p in psutil.Process(pid).children() if "lance.forked" in " ".join(p.cmdline())]


def test_a_reading_process_that_was_killed_is_an_error_and_the_next_read_gets_a_new_one(table):
    ds = sw.lance(table, columns=("id",), memory_bytes=0)
    ds[0]

    def read():
        assert ds[1]["id"] == 1
        (helper,) = helpers_of(os.getpid())
        os.kill(helper.pid, signal.SIGKILL)
        while helper.status() != psutil.STATUS_ZOMBIE:
            pass
        try:
            ds[250]
        except StorageError as error:
            told = str(error)
        return told, ds[250]["id"]

    told, value = in_child(read)
    assert "exit code -9" in told
    assert value == 250


def test_a_child_that_is_killed_leaves_no_reading_process(table):
    ds = sw.lance(table)
    ds[0]
    mine, other = multiprocessing.get_context("fork").Pipe(duplex=False)

    def read():
        ds[1]
        other.send([p.pid for p in helpers_of(os.getpid())])
        signal.pause()

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    assert mine.poll(PATIENCE_S)
    (pid,) = mine.recv()
    helper = psutil.Process(pid)
    child.kill()
    child.join()
    child.close()
    _, alive = psutil.wait_procs([helper], timeout=PATIENCE_S)
    assert not alive
    mine.close()
    other.close()


def test_the_reading_process_ends_with_the_dataset(table):
    LanceSource(table).read(np.arange(3))

    def read():
        ds = sw.lance(table)
        ds[1]
        helpers = helpers_of(os.getpid())
        del ds
        return len(helpers), len(psutil.wait_procs(helpers, timeout=PATIENCE_S)[1])

    assert in_child(read) == (1, 0)
