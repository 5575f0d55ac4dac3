"""`output="jax"`: each in processes of its own, since virtual devices are chosen at the import."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.pages import blocks

PAGE = Path(__file__).resolve().parents[3] / "docs" / "jax.md"
PROGRAMS = Path(__file__).with_name("programs")

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX")


def start(program: Path | str, *arguments: object, num_devices: int) -> subprocess.Popen[str]:
    """Start a program, by default of this directory, on virtual devices."""
    command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    pipe, out = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, stdout=pipe, stderr=out, text=True, env=env)


def check(*programs: subprocess.Popen[str]) -> None:
    """Wait until the programs end well."""
    try:
        outputs = [program.communicate(timeout=200)[0] for program in programs]
    finally:
        for program in programs:
            program.kill()
    for program, output in zip(programs, outputs, strict=True):
        assert (program.returncode, output.split()[-1:]) == (0, ["ok"]), output


@needs_jax
def test_batches_are_arrays_on_a_sharding_of_virtual_devices_without_torch():
    check(start("batches.py", num_devices=4))


@needs_jax
def test_the_page_of_jax_trains_on_virtual_devices(tmp_path):
    program = tmp_path / "page.py"
    page = [block.code for block in blocks(PAGE)]
    program.write_text("\n".join([*page, 'print("ok")']))
    check(start(program, num_devices=4))


@needs_jax
def test_the_sharding_of_two_processes_tells_which_rank_each_is():
    with socket.socket() as held:
        # Nobody else gets the port; JAX's coordinator may have it, too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("0.0.0.0", 0))
        port = held.getsockname()[1]
        check(*(start("ranks.py", port, process, num_devices=2) for process in range(2)))


def test_without_jax_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "shardwise.extensions.jax", raising=False)
    with pytest.raises(sw.MissingExtraError, match=r"shardwise\[jax\]"):
        sw.DataLoader(sw.wrap([1, 2]), output="jax")
