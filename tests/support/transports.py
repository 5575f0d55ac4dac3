"""The transports of batch servers, for tests that run over each."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardwise.extensions.service.token import make_token
from tests.support.server_process import skip_or_fail

# UCX by what it chooses on one machine, which is shared memory, and as it goes between machines.
TRANSPORTS = ["tcp", "ucx", "ucx-between-machines"]


def use_transport(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The scheme of a transport's addresses; `skip_or_fail` without ucxx."""
    if name == "tcp":
        return "tcp"
    if importlib.util.find_spec("ucxx") is None:
        skip_or_fail("needs ucxx, which is not installed: pip install 'shardwise[ucx]'")
    if name == "ucx-between-machines":
        monkeypatch.setenv("UCX_TLS", "tcp")
        monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    return "ucx"


@dataclass(frozen=True)
class Transport:
    """The scheme of a transport's addresses, and its servers' token, if they need one."""

    scheme: str
    token_file: Path | None


@pytest.fixture
def transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Transport:
    """A transport by its name: the parameter, given with `indirect`."""
    scheme = use_transport(request.param, monkeypatch)
    return Transport(scheme, token_for(scheme, tmp_path))


def token_for(scheme: str, folder: Path) -> Path | None:
    """A new file with a token, where servers of this scheme need one."""
    if scheme != "ucx":
        return None
    path = folder / "job.token"
    make_token(path)
    return path
