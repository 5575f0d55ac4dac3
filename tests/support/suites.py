"""Other projects' own test suites, run unmodified with our modules under their names.

The suites come from the source packages of the releases, which `.ci/environment.sh` puts into the
folder `suites` of the virtual environment; nothing of them is kept here. They run in a process of
their own, in a folder of their own: their files, test data that is made up, a `conftest.py` with
the names that they import from there, and a plugin that calls `shardwise.compat.install`. What they
read from the internet comes from a web server of the test.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tests.support.server_process import skip_or_fail
from tests.support.suite_data import NUM_REMOTE_SHARDS
from tests.support.torchrun import PYTHON_PATH, run_program

_DIGESTS = {
    "webdataset-1.0.2": "7f0498be827cfa46cc5430a58768a24e2c6a410676a61be1838f53d61afdaab4",
    "wids-0.1.11": "b266230250f93396ee6075d76462d1087566819bdad48b194357dc8758d05eb9",
}

_PLUGIN = """
import shardwise

shardwise.compat.install()
"""

_CONFTEST = '''
import os
import random

import pytest

server = os.environ["SUITE_SERVER"]

local_data = "testdata/imagenet-000000.tgz"
compressed = "testdata/compressed.tar"
remote_loc = server + "/shards/"
remote_shard = "shard-000000.tar"
# A list in braces, and no range: one test hands it to curl, too.
remote_shards = "shard-{NUMBERS}.tar"
remote_pattern = "shard-{000000..LAST}.tar"
remote_sample = server + "/shards/sample.tar"


def count_samples_tuple(source, *predicates, n=10000):
    count = 0
    for sample in source:
        if count == n:
            break
        assert isinstance(sample, (tuple, dict, list)), type(sample)
        assert all(predicate(sample) for predicate in predicates)
        count += 1
    return count


@pytest.fixture(autouse=True)
def internet(request, monkeypatch):
    """The two hosts that tests name, as folders of the local server."""
    # This file tests that such rules are refused.
    if request.module.__name__ != "tests.test_security":
        rules = [f"{scheme}://storage.googleapis.com={server}" for scheme in ("https", "http")]
        monkeypatch.setenv("GOPEN_REWRITE", ";".join(rules))


@pytest.fixture(autouse=True)
def same_numbers():
    """One test wants 80 to 120 of 1,000 samples that are kept with 10 %: 4 % of runs have not."""
    random.seed(0)


def pytest_collection_modifyitems(items):
    # wids has no rules like these: what it is asked for is changed instead.
    for module in {item.module for item in items if item.module.__name__ == "tests.test_wids_dl"}:
        for name, value in list(vars(module).items()):
            if isinstance(value, str) and value.startswith("https://storage.googleapis.com"):
                setattr(module, name, value.replace("https://storage.googleapis.com", server))
    # One test names the MD5 of a file that the source package does not hold; ours has another.
    import shardwise.compat.wids.shards as shards

    digest_of = shards.compute_file_md5sum
    stated = {"testdata/ixtest.tar": "3b3c0afe31e45325b7c4e6dec5235d13"}
    shards.compute_file_md5sum = lambda name: stated.get(name) or digest_of(name)


def pytest_generate_tests(metafunc):
    repeats = int(os.environ.get("SUITE_REPEATS", "1"))
    if repeats > 1:
        metafunc.fixturenames.append("repeat")
        metafunc.parametrize("repeat", range(repeats))
'''


@dataclass(frozen=True)
class Outcome:
    """How a suite ended.

    Attributes:
        total: tests that ran.
        failed: the names of those that failed or could not be run, such as
            "test_compat::test_batched".
        skipped: those that were skipped.
        output: what pytest printed.
    """

    total: int
    failed: frozenset[str]
    skipped: frozenset[str]
    output: str


def unpack_package(name: str, folder: Path, part: str) -> None:
    """Put a part of a source package, its "tests" or "src", under `folder`.

    Without the package the test is skipped with the reason; with `CI` set it fails.
    """
    package = Path(sys.prefix, "suites", f"{name}.tar.gz")
    if not package.exists():
        skip_or_fail(f"the source package {name} is not in {package.parent}: ensure_suites gets it")
    assert hashlib.sha256(package.read_bytes()).hexdigest() == _DIGESTS[name], "not the release"
    with tarfile.open(package) as tar:
        members = [member for member in tar if member.name.startswith(f"{name}/{part}/")]
        tar.extractall(folder, members, filter="data")


def unpack_suite(name: str, folder: Path) -> None:
    """Put the tests of a source package into `folder`, with what they need around them."""
    unpack_package(name, folder, "tests")
    (folder / name / "tests").rename(folder / "tests")
    (folder / "tests" / "__init__.py").touch()
    numbers = ",".join(f"{n:06d}" for n in range(NUM_REMOTE_SHARDS))
    conftest = _CONFTEST.replace("NUMBERS", numbers).replace("LAST", f"{NUM_REMOTE_SHARDS - 1:06d}")
    (folder / "tests" / "conftest.py").write_text(conftest)
    (folder / "suite_plugin.py").write_text(_PLUGIN)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = quick: theirs\n")


def run_suite(folder: Path, server: str, *tests: str, repeats: int = 1) -> Outcome:
    """Run the suite that `unpack_suite` put into `folder`, or some of its tests.

    The web server has the files of `make_served_files`.
    """
    report = folder / "report.xml"
    done = run_program(
        "-m", "pytest", "-p", "suite_plugin", "-p", "no:cacheprovider", "-q", "--tb=short",
        f"--junitxml={report}", f"--rootdir={folder}", *(tests or ["tests"]),
        timeout=900,
        check=False,
        cwd=folder,
        env={
            "PYTHONPATH": f"{folder}{os.pathsep}{PYTHON_PATH}",
            "SUITE_SERVER": server,
            "SUITE_REPEATS": str(repeats),
            "WIDS_CACHE": str(folder / "wids-cache"),
        },
    )  # fmt: skip
    assert done.returncode in (0, 1), f"pytest did not run: {done.stdout}"
    cases = list(ET.parse(report).getroot().iter("testcase"))
    return Outcome(
        len(cases),
        frozenset(_name(case) for case in cases if _has(case, "failure", "error")),
        frozenset(_name(case) for case in cases if _has(case, "skipped")),
        done.stdout,
    )


def _has(case: ET.Element, *tags: str) -> bool:
    return any(case.find(tag) is not None for tag in tags)


def _name(case: ET.Element) -> str:
    return f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
