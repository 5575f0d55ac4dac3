"""What all tests with servers share: a user without caches of earlier runs, and one S3 server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.io_counts import counted_io


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the user's caches: an empty one."""
    folder = tmp_path / "user-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    return folder


class Since:
    """The test's own counts of remote storage since the last time."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def __call__(self) -> Counter[str]:
        found = self._counts.copy()
        self._counts.clear()
        return found


@pytest.fixture
def counted() -> Iterator[Since]:
    """Counts what the test asks of servers."""
    with counted_io() as counts:
        yield Since(counts)
