"""WebDataset's and wids' own tests pass on our modules, unmodified."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import require_binary
from tests.support.servers import nginx
from tests.support.suite_data import make_served_files, make_testdata
from tests.support.suites import run_suite, unpack_suite

# Each suite is one process that runs for a minute or two on a free machine.
pytestmark = pytest.mark.timeout(1000)

# They build their transforms with torchvision, which does not load beside a CPU build of torch.
_NEED_TORCHVISION = frozenset(
    f"{file}::{test}"
    for file in ("test_compat", "test_pipeline")
    for test in ("test_torchvision", "test_batched", "test_unbatched")
)


@pytest.fixture(scope="module")
def server(no_orphans: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    make_served_files(folder)
    with nginx(folder) as running:
        yield running.url


def without_torchvision() -> frozenset[str]:
    try:
        importlib.import_module("torchvision.transforms")
    except (ImportError, RuntimeError):
        return _NEED_TORCHVISION
    return frozenset()


# Those that read little: the rest of them read shards through whole pipelines.
NUM_QUICK = 83
# It waits 28 s until a host that no server has is given up.
_SLOW = "test_security.py::TestEnforceSecurity::test_safe_urls_still_work_when_security_enabled"
_QUICK = (
    "filters", "gopen", "handlers", "mix", "security", "shardlists", "shuffles", "utils", "writer",
)  # fmt: skip


def test_the_quick_files_of_the_webdataset_suite_pass(tmp_path: Path, server: str) -> None:
    unpack_suite("webdataset-1.0.2", tmp_path)
    make_testdata(tmp_path / "testdata")
    files = (f"tests/test_{name}.py" for name in _QUICK)
    outcome = run_suite(tmp_path, server, f"--deselect=tests/{_SLOW}", *files)
    assert not outcome.failed | outcome.skipped, outcome.output
    assert outcome.total == NUM_QUICK


@pytest.mark.long
def test_the_webdataset_suite_passes(tmp_path: Path, server: str) -> None:
    for program in ("curl", "file", "tar", "dd"):
        require_binary(program, package=f"apt-get install {program}")
    unpack_suite("webdataset-1.0.2", tmp_path)
    make_testdata(tmp_path / "testdata")
    outcome = run_suite(tmp_path, server)
    assert outcome.failed == without_torchvision(), outcome.output
    assert not outcome.skipped, outcome.output
    assert outcome.total == 193


@pytest.mark.long
def test_a_missing_shard_on_a_server_is_an_error_each_time(tmp_path: Path, server: str) -> None:
    unpack_suite("webdataset-1.0.2", tmp_path)
    test = "tests/test_handlers.py::test_missing_throws2"
    outcome = run_suite(tmp_path, server, test, repeats=20)
    assert outcome.total == 20
    assert not outcome.failed | outcome.skipped, outcome.output


def test_the_wids_suite_passes(tmp_path: Path, server: str) -> None:
    unpack_suite("wids-0.1.11", tmp_path)
    make_testdata(tmp_path / "testdata")
    outcome = run_suite(tmp_path, server)
    assert not outcome.failed | outcome.skipped, outcome.output
    assert outcome.total == 37
