"""What holds for all tests: hypothesis without deadlines, no ranks from outside, no orphans."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import HealthCheck, settings

from shardwise.engine.processes.start_worker import start_worker
from tests.support.properties import QUICK
from tests.support.ranks import LAUNCHER, end_launcher
from tests.support.servers import AzureServer, S3Server, azurite, s3_gateway
from tests.support.warm_workers import WorkerLauncher

if TYPE_CHECKING:
    from tests.support.media import MediaFolder

# A loaded machine is slow, not wrong: neither deadlines nor the check for slow generation.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("local", **_COMMON)
settings.register_profile("ci", derandomize=True, database=None, **_COMMON)
settings.load_profile("ci" if os.environ.get("CI") else "local")
# ./test tries the same examples in every run: new ones are looked for by ./test --all.
settings.register_profile(
    "quick", settings.default, max_examples=QUICK, derandomize=True, database=None
)


WORKERS = WorkerLauncher()
# Servers of the session.
KEPT: set[psutil.Process] = set()
BUCKETS = itertools.count(1)
_START_WORKER = "shardwise.engine.processes.worker_pool.start_worker"

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
_RANK_PREFIXES = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_")


def pytest_configure(config: pytest.Config) -> None:
    """Where the long tests are left out, properties try fewer examples; see `examples`."""
    if config.option.markexpr == "not long":
        settings.load_profile("quick")


def pytest_collection_finish() -> None:
    """Modules and tests live to the end: no collection looks at these 600,000 objects again.

    Each would take 0.2 s of CPU time, in each forked worker once more to copy their pages.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_ranks_from_outside() -> Iterator[None]:
    """The tests mean the same inside a cluster job: its rank variables are taken away."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name in _RANK_VARIABLES or name.startswith(_RANK_PREFIXES):
                patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def launcher_of_ranks() -> Iterator[None]:
    """The process that ranks are forked from lives as long as the session."""
    yield
    end_launcher()


@pytest.fixture(scope="session", autouse=True)
def warm_workers() -> Iterator[None]:
    """Worker processes of this process's loaders are forks of one that lives as long as it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_START_WORKER, WORKERS.start_worker)
        yield
    WORKERS.end()


@pytest.fixture
def fresh_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are started as by any program: for claims about that."""
    monkeypatch.setattr(_START_WORKER, start_worker)


@pytest.fixture(scope="module", autouse=True)
def no_orphans() -> Iterator[None]:
    """A test file ends with no more child processes than it began with."""
    me = psutil.Process()
    before = set(me.children(recursive=True))
    yield
    # A loader that a traceback holds on to ends its workers when it is collected.
    gc.collect()
    left = [p for p in me.children(recursive=True) if p not in before and not _is_helper(p)]
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not alive, f"child processes were left behind: {[p.cmdline() for p in alive]}"


def _is_helper(process: psutil.Process) -> bool:
    """Whether it is kept to the end of the session: multiprocessing's own, a launcher, a server."""
    if process.pid == WORKERS.pid or process in KEPT:
        return True
    try:
        command = " ".join(process.cmdline())
        # What the launcher forks has its command line.
        if str(LAUNCHER) in command and process.ppid() == os.getpid():
            return True
    except psutil.NoSuchProcess:
        return True
    return "resource_tracker" in command or "multiprocessing.forkserver" in command


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server with an access log."""
    before = set(psutil.Process().children())
    with s3_gateway(tmp_path_factory.mktemp("s3"), access_log=True) as server:
        KEPT.update(set(psutil.Process().children()) - before)
        yield server


@pytest.fixture(scope="module")
def s3(no_orphans: None, s3_server: S3Server) -> Iterator[S3Server]:
    """An S3 server with an empty bucket and an empty log, for the tests of one file."""
    yield s3_server.with_bucket(f"bucket-{next(BUCKETS)}")
    # Blocks that are fetched ahead now are none of the next file's.
    for thread in threading.enumerate():
        if thread.name == "shardwise-cache":
            thread.join(20)


@pytest.fixture(scope="module")
def azure(no_orphans: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """An Azure blob service with an empty container, for the tests of one file."""
    with azurite(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def media_files(tmp_path_factory: pytest.TempPathFactory) -> MediaFolder:
    """Small media files of many kinds, each made when it is first asked for."""
    # The tests of the core also run where there are no extensions.
    from tests.support.media import MediaFolder, needs_ffmpeg

    needs_ffmpeg()
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Its processes share the files, which get their names when they are whole.
        folder = folder.parent
    (folder / "media").mkdir(exist_ok=True)
    return MediaFolder(folder / "media")
