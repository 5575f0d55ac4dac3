"""The transports of batch servers, for tests that run over each."""

from __future__ import annotations

import importlib.util
import os

import pytest

__all__ = ["TRANSPORTS", "use_transport"]

# UCX by what it chooses on one machine, which is shared memory, and as it goes between machines.
TRANSPORTS = ["tcp", "ucx", "ucx-between-machines"]


def use_transport(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The scheme of a transport's addresses.

    Without ucxx the test is skipped; with the variable `CI` set it fails.
    """
    if name == "tcp":
        return "tcp"
    if importlib.util.find_spec("ucxx") is None:
        reason = "needs ucxx, which is not installed: pip install 'shardwise[ucx]'"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    if name == "ucx-between-machines":
        monkeypatch.setenv("UCX_TLS", "tcp")
        monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    return "ucx"
