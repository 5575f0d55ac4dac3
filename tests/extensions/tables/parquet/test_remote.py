"""Parquet tables and lists of files in stores: real servers on this machine."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, StaleIndexError
from shardwise.extensions.tables.parquet.source import ParquetSource
from shardwise.storage import StorageOptions
from tests.support.servers import nginx
from tests.support.tables import expected_rows, numbered_table, write_files, write_groups


@pytest.fixture(scope="module")
def web(no_orphans, tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    with nginx(folder) as server:
        yield folder, server


def test_a_table_on_a_web_server_is_read_as_a_local_one(web):
    folder, server = web
    write_files(folder / "t", [40, 0, 3])
    ds = sw.parquet(f"{server.url}/t/part-{{00000..00002}}.parquet")
    keys = [f"part-00000:{i}" for i in range(40)] + [f"part-00002:{i}" for i in range(3)]
    wanted = expected_rows(keys)
    assert len(ds) == 43
    for index in (42, 0, 39):
        sample = ds[index]
        assert sample.pop("vec").tolist() == wanted[index].pop("vec").tolist()
        assert sample == wanted[index]
    assert ds.fingerprint == sw.parquet(folder / "t").fingerprint


def test_of_a_remote_row_group_the_columns_asked_for_are_fetched(web):
    folder, server = web
    rng = np.random.default_rng(0)
    groups = pa.table({"big": [rng.bytes(1000) for _ in range(2000)], "small": range(2000)})
    pq.write_table(groups, folder / "wide.parquet", row_group_size=1000)
    ds = sw.parquet(f"{server.url}/wide.parquet", columns=["small"])
    assert len(ds) == 2000
    before = server.requests()
    assert ds.load(np.arange(1000, 1100))["small"].tolist() == list(range(1000, 1100))
    assert ds.load(np.arange(1500, 1600))["small"].tolist() == list(range(1500, 1600))
    asked = [seen for seen in server.requests()[len(before) :] if seen["method"] == "GET"]
    assert sum(seen["num_bytes"] for seen in asked) < 200_000


def test_a_remote_file_that_changed_is_noticed(web):
    folder, server = web
    path = folder / "changing.parquet"
    write_groups(path, [10, 10])
    ds = sw.parquet(f"{server.url}/changing.parquet")
    assert len(ds) == 20
    pickled = pickle.dumps(ds)
    pq.write_table(numbered_table(100, 150), path)
    # Here, and where nobody has looked at the file before.
    for table in (ds, pickle.loads(pickled)):
        with pytest.raises(StaleIndexError) as caught:
            table[15]
        assert caught.value.url == f"{server.url}/changing.parquet"


def test_a_remote_list_names_files_beside_it(web):
    folder, server = web
    (folder / "img").mkdir()
    for i in range(3):
        (folder / "img" / f"{i}.png").write_bytes(b"%d" % i)
    (folder / "list.csv").write_text("path,label\nimg/2.png,0\nimg/0.png,1\n")
    ds = sw.files(f"{server.url}/list.csv")
    assert [(s["image"], s["label"]) for s in ds] == [(b"2", 0), (b"0", 1)]
    (folder / "bad.csv").write_text("path\n../../elsewhere.png\n")
    with pytest.raises(DataError, match="does not lie in"):
        len(sw.files(f"{server.url}/bad.csv"))


def test_a_bucket_is_listed_by_directory_and_glob(s3, tmp_path):
    for month in ("01", "02"):
        (path,) = write_files(tmp_path / month, [25])
        s3.put(f"t/m={month}/part-0.parquet", Path(path).read_bytes())
    options = StorageOptions(config=s3.config)
    ds = sw.parquet(f"s3://{s3.bucket}/t/**/*.parquet", storage=options)
    assert (len(ds), ds[49]["m"], ds[49]["id"]) == (50, "02", 24)
    source = ParquetSource(f"s3://{s3.bucket}/t/m=01/", storage=options)
    assert source.manifest.num_samples == 25
    with sw.DataLoader(ds, batch_size=10, shuffle=True, rank=0, world_size=1) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 50
    for split in ("train", "test"):
        s3.put(f"hub/{split}-00000-of-00001.parquet", Path(path).read_bytes())
    with pytest.raises(DataError, match="splits test, train"):
        sw.parquet(f"s3://{s3.bucket}/hub/", storage=options)
