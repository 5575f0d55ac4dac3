"""What all tests with servers share: a user without caches of earlier runs, and one S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.storage import IO_COUNTS


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the user's caches: an empty one."""
    folder = tmp_path / "user-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    return folder


class Since:
    """The process's counts of remote storage since the last time."""

    def __init__(self) -> None:
        self._before = IO_COUNTS.snapshot()

    def __call__(self) -> dict[str, int]:
        now = IO_COUNTS.snapshot()
        found = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return found


@pytest.fixture
def counted() -> Since:
    """Counts what is asked of servers."""
    return Since()
