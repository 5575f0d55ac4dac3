"""What the tests of compat share: shards of 6 to 15 samples, and to be one of several readers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.tars import make_shards
from tests.support.wds_shards import SIZES


@pytest.fixture(scope="session")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return make_shards(tmp_path_factory.mktemp("shards"), SIZES)


@pytest.fixture
def as_reader(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the environment name this process's rank, and its worker where one is given."""

    def set_names(rank: int, world_size: int, worker: int | None = None, num: int = 1) -> None:
        names = {"RANK": rank, "WORLD_SIZE": world_size}
        if worker is not None:
            names |= {"WORKER": worker, "NUM_WORKERS": num}
        for name, value in names.items():
            monkeypatch.setenv(name, str(value))

    return set_names
