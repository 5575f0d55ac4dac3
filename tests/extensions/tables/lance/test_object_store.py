"""A table on a real S3 server: settings go to Lance, and stay out of pickles."""

import json
import pickle

import pytest

import shardwise as sw
from shardwise.base.errors import MissingShardError, StorageError
from shardwise.testing import check_source
from tests.support.lance_tables import make_table

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")


@pytest.fixture(scope="module")
def table(s3):
    return make_table(s3.url("tables/t.lance"), num_rows=250, storage_options=s3.config)


def test_a_remote_table_keeps_what_a_source_keeps(s3, table):
    ds = sw.lance(table, storage=s3.config)
    assert [shard.num_samples for shard in ds.manifest.shards] == [100, 100, 50]
    check_source(ds.source)


def test_worker_processes_get_the_settings_and_pickles_do_not(s3, table):
    ds = sw.lance(table, columns=("id",), storage=s3.config, version=1)
    with sw.DataLoader(
        ds, batch_size=50, num_workers=2, output="numpy", rank=0, world_size=1
    ) as loader:
        assert [i for batch in loader for i in batch["id"].tolist()] == list(range(250))
    for told in (pickle.dumps(ds), repr(ds).encode(), json.dumps(loader.state_dict()).encode()):
        assert s3.secret_key.encode() not in told


def test_a_remote_table_that_is_not_there_is_missing(s3):
    with pytest.raises(MissingShardError, match="no Lance table"):
        len(sw.lance(s3.url("tables/other.lance"), storage=s3.config))


def test_wrong_credentials_are_an_error_of_storage_without_the_secret(s3, table):
    wrong = {**s3.config, "aws_secret_access_key": "wrong+secret"}
    with pytest.raises(StorageError) as caught:
        len(sw.lance(table, storage=wrong))
    assert "wrong+secret" not in str(caught.value)
