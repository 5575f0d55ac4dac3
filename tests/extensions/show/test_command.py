"""`shardwise show`: samples in a terminal, as JSON and in files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardwise as sw
from shardwise.extensions.show.command import write_samples
from tests.support.commands import document, run
from tests.support.pages import SHARD_SIZES, write_shards
from tests.support.tars import write_tar


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show") / "shards"
    write_shards(folder)
    return folder


def test_samples_are_texts_where_nobody_draws(shards: Path) -> None:
    written = run("show", shards, "-n", 2, "--first", 3).stdout.splitlines()
    assert written == [
        "0003", "  cls: 3", "  jpg: <uint8 [3, 48, 64]>", "  txt: a handwritten 3",
        "0004", "  cls: 4", "  jpg: <uint8 [3, 48, 64]>", "  txt: a handwritten 4",
    ]  # fmt: skip


def test_the_document_has_keys_and_values(shards: Path) -> None:
    found = document("show", shards, "-n", 1)
    fields = {"cls": "0", "jpg": "<uint8 [3, 48, 64]>", "txt": "a handwritten 0"}
    assert found["samples"] == [{"key": "0000", "fields": fields}]
    assert found["num_samples"] == sum(SHARD_SIZES)


def test_a_terminal_gets_pictures_in_half_blocks(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    write_samples(sw.show(sw.tar(shards).decode(), num_samples=1, side=48))
    lines = terminal.getvalue().splitlines()
    # 64 x 48 pixels, halved: 12 lines of 32 blocks.
    assert [line.count("▀") for line in lines if "▀" in line] == [32] * 12
    assert lines[0] == "0000"
    assert not any("jpg" in line for line in lines)


def test_samples_are_written_into_files(shards: Path, tmp_path: Path) -> None:
    written = run("show", shards, "-o", tmp_path / "a.png", "-n", 5).stdout
    assert written == f"{tmp_path / 'a.png'}: 5 samples\n"
    assert Image.open(tmp_path / "a.png").size[0] > 300
    run("show", shards, "-o", tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text().count("<img ") == 4


def test_control_codes_of_the_data_do_not_reach_the_terminal(tmp_path: Path) -> None:
    with sw.TarWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "txt": "x\x1b[2Jy"})
    written = run("show", tmp_path).stdout
    assert "\x1b" not in written
    assert r"\x1b[2J" in written


def test_data_without_samples_are_shown_as_nothing(tmp_path: Path) -> None:
    write_tar(tmp_path / "b.tar", [])
    assert run("show", tmp_path / "b.tar").stdout == ""


def test_what_it_can_not_show_is_an_error(shards: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("--first", sum(SHARD_SIZES)), f"--first={sum(SHARD_SIZES)}"),
        (("-o", tmp_path / "a.xyz"), "must end in .png"),
        (("-n", 0), "0 is not in the range"),
    ):
        result = run("show", shards, *arguments, exit_code=2)
        assert message in " ".join(result.output.replace("│", " ").split()), arguments
    with sw.TarWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "cls": b"no number"})
    assert "cls" in run("show", tmp_path, exit_code=1).stderr


def test_tables_and_datasets_in_python_are_shown(tmp_path: Path) -> None:
    program = tmp_path / "data.py"
    program.write_text(
        "import numpy as np, shardwise as sw\n"
        "data = sw.wrap([{'x': np.zeros((3, 8, 8)), 'y': n} for n in range(3)])\n"
    )
    written = run("show", f"{program}:data", "-n", 9).stdout
    assert written.count("y: ") == 3
    assert np.count_nonzero(["float64 [3, 8, 8]" in line for line in written.splitlines()]) == 3
