"""Shards are handed out to any workers, and again where one died; bad addresses are refused."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace

import pytest

import shardwise as sw
from shardwise.extensions.build.place import Place
from shardwise.extensions.build.workers import WorkerDiedError, _Pool, hand_out
from shardwise.storage import StorageOptions
from tests.support.commands import run


class Scripted:
    """Workers that fail as told: shard -> what each of its tries raises, in turn."""

    limit, advice = 3, "use less"

    def __init__(self, **failures):
        self.failures = {int(name[1:]): list(errors) for name, errors in failures.items()}
        self.running, self.tries, self.most = [], Counter(), 0

    def submit(self, number):
        self.running.append(number)
        self.tries[number] += 1
        self.most = max(self.most, len(self.running))

    def wait(self):
        number = self.running.pop(0)
        errors = self.failures.get(number)
        return {number: errors.pop(0) if errors else None}


def made(workers, is_done=lambda number: False):
    return list(hand_out(workers, range(8), is_done=is_done))


def test_no_more_shards_than_the_limit_are_under_way():
    workers = Scripted()
    assert made(workers) == list(range(8))
    assert workers.most == 3


def test_the_shard_of_a_dead_worker_is_made_again():
    workers = Scripted(s2=[WorkerDiedError()] * 4)
    assert sorted(made(workers)) == list(range(8))
    assert workers.tries[2] == 5


def test_a_shard_that_was_done_before_its_worker_died_is_not_made_again():
    workers = Scripted(s2=[WorkerDiedError()])
    assert sorted(made(workers, is_done=lambda number: number == 2)) == list(range(8))
    assert workers.tries[2] == 1


def test_a_shard_of_which_workers_die_five_times_is_named():
    workers = Scripted(s2=[WorkerDiedError("gone")] * 5)
    message = r"died 5 times while they made shard 2 \(gone\): use less"
    with pytest.raises(sw.WorkerError, match=message):
        made(workers)


def test_what_a_shard_raises_is_raised():
    with pytest.raises(sw.DataError, match="damaged"):
        made(Scripted(s4=[sw.DataError("damaged")]))


def test_a_worker_that_does_not_see_the_output_or_has_another_builder_is_refused(tmp_path):
    place = Place(str(tmp_path / "out"), StorageOptions())
    with place.locked() as token:
        place.join(token).__exit__(None, None, None)
        with pytest.raises(sw.StorageError, match=r"does not see the output of this build in '/"):
            place.join("of another builder")
    elsewhere = Place(str(tmp_path / "elsewhere"), StorageOptions())
    with pytest.raises(sw.StorageError, match="give a directory that all of them share, or a stor"):
        elsewhere.join(token)


def build(tmp_path, **options):
    return sw.build([{"cls": 1}], f"{tmp_path}/out/{{shard}}.tar", **options)


def test_without_ray_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(sw.MissingExtraError, match=r"pip install 'shardwise\[ray\]'"):
        build(tmp_path, ray=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ray": "somewhere"}, ValueError, "'host:port' of the head node"),
        ({"ray": ""}, ValueError, "'host:port' of the head node"),
        ({"ray": "ray://head:10001"}, ValueError, "ray job submit"),
        ({"ray": 8}, TypeError, "ray=8: True, 'auto', or the address"),
        ({"ray": True, "num_workers": 0}, ValueError, "num_workers"),
    ],
)
def test_what_names_no_cluster_is_refused_before_anything_is_written(
    tmp_path, options, error, message
):
    with pytest.raises(error, match=message):
        build(tmp_path, **options)
    assert not (tmp_path / "out").exists()


def test_a_command_says_where_the_option_without_an_address_stands(tmp_path):
    result = run("reshard", "--ray", tmp_path / "in", tmp_path / "out", exit_code=2)
    assert "--ray without an address stands last" in " ".join(result.stderr.split())


def test_the_advice_names_the_main_guard_before_the_memory():
    job = SimpleNamespace(copies=lambda: False, place="", token="")
    advice = _Pool(job, 2).advice
    assert 0 < advice.index('if __name__ == "__main__"') < advice.index("memory")
    assert "num_workers=2" in advice
