"""Programs with few descriptors, little memory or no standard streams: slower, or told why not."""

from __future__ import annotations

import shutil

import pytest

from shardwise.sources.tar.index.build import build_indexes
from tests.engine.processes.test_executor import run_program, said_by
from tests.support.tars import make_shards

LIMITED = """
    import os, resource, sys
    import numpy as np
    import shardwise as sw

    def limit(name, value):
        resource.setrlimit(getattr(resource, name), (value, value))
"""

FEW_FILES = """
    limit("RLIMIT_NOFILE", 64)

    def row(sample):
        return {{"x": np.full((64, 8), sample["cls"])}}

    data = sw.tar(sys.path[0] + "/shards").decode(cls=int).map(row)
    loader = sw.DataLoader(
        data, batch_size=50, shuffle=True, output="numpy", rank=0, world_size=1, {options}
    )
    for epoch in range(2):
        kept = list(loader)
        assert all((batch["x"] == (batch["__index__"] % 10)[:, None, None]).all() for batch in kept)
        ids = np.concatenate([batch["__index__"] for batch in kept])
        assert sorted(ids.tolist()) == list(range(750)), len(ids)
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """150 shards of five samples, indexed: more than twice the files that may be open."""
    folder = tmp_path_factory.mktemp("shards")
    build_indexes(make_shards(folder, [5] * 150, fields=("cls",)), jobs=1)
    return folder


@pytest.mark.parametrize("options", ["num_threads=2", "num_workers=2"])
def test_64_open_files_are_enough_for_150_shards(options, shards, tmp_path):
    (tmp_path / "shards").symlink_to(shards)
    assert said_by(LIMITED + FEW_FILES.format(options=options), tmp_path) == (0, "", "")


MANY_DESCRIPTORS = """
    limit("RLIMIT_NOFILE", 64)
    data = sw.wrap(range(16384)).map(lambda s: {"x": np.full(512, s["value"])})
    loader = sw.DataLoader(
        data, batch_size=4096, output="numpy", rank=0, world_size=1, num_workers=2,
        prefetch_factor=8,
    )
    assert [x for batch in loader for x in batch["x"][:, 7].tolist()] == list(range(16384))
"""


# One trainer keeps to half of the limit; of three, the workers wait for one another.
@pytest.mark.parametrize("num_trainers", [1, 3])
def test_a_user_may_have_more_descriptors_under_way_than_the_system_allows(num_trainers, tmp_path):
    drop = shutil.which("setpriv")
    if drop is None:
        pytest.skip("needs setpriv: a process with capabilities has no such limit")
    own = [drop, "--bounding-set=-all", "--inh-caps=-all"]
    trainers = []
    try:
        for _ in range(num_trainers):
            program = LIMITED + MANY_DESCRIPTORS
            trainers.append(run_program(program, tmp_path=tmp_path, before=own))
        for trainer in trainers:
            assert (trainer.communicate(timeout=120), trainer.returncode) == (("", ""), 0)
    finally:
        # What is under way counts against every later program of the user.
        for trainer in trainers:
            trainer.kill()
            trainer.communicate()


@pytest.mark.parametrize(
    ("before", "after", "remedy"),
    [
        ('limit("RLIMIT_NOFILE", 8)', "", "ulimit -n"),
        ("", 'limit("RLIMIT_FSIZE", 1000)', "ulimit -f"),
        ("", 'limit("RLIMIT_AS", used() + (64 << 20))', "ulimit -v"),
    ],
)
def test_a_limit_that_is_in_the_way_is_named_with_what_to_change(before, after, remedy, tmp_path):
    program = (
        LIMITED
        + f"""
    def used():
        return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

    data = sw.wrap(range(1280)).map(lambda s: {{"x": np.zeros(1 << 16, np.int32)}})
    loader = sw.DataLoader(
        data, batch_size=32, output="numpy", rank=0, world_size=1, num_workers=1
    )
    {before}
    try:
        batches = iter(loader)
        kept = [next(batches)]
        {after}
        kept += batches
    except sw.StorageError as error:
        print(error)
    """
    )
    code, out, err = said_by(program, tmp_path)
    assert code == 0, err
    assert remedy in out


@pytest.mark.parametrize("closed", [(0, 1, 2), pytest.param((2,), marks=pytest.mark.long)])
def test_closed_standard_streams_are_nothing_to_the_workers(closed, tmp_path):
    program = (
        LIMITED
        + f"""
    for number in {closed}:
        os.close(number)

    def warns(sample):
        os.write(2, b"libpng warning: as C code does")
        return {{"x": np.full((64, 8), sample["value"])}}

    loader = sw.DataLoader(
        sw.wrap(range(640)).map(warns), batch_size=16, output="numpy", rank=0, world_size=1,
        num_workers=2,
    )
    ids = []
    for batch in loader:
        try:
            os.write(2, b"so does the trainer's own")
        except OSError:
            pass
        assert (batch["x"] == batch["__index__"][:, None, None]).all()
        ids += batch["__index__"].tolist()
    assert ids == list(range(640))
    open(sys.path[0] + "/done", "w").write("done")
    """
    )
    code, _, err = said_by(program, tmp_path)
    assert (code, err) == (0, "")
    assert (tmp_path / "done").read_text() == "done"
