"""Python blocks of Markdown pages, and the shards that they are run with."""

from __future__ import annotations

import functools
import io
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.tars import write_tar

_FENCE = re.compile(
    r"^(?P<before>[^\n]*)\n"
    r"(?P<indent> *)```(?P<info>python[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
# Odd numbers, so that no page relies on them: its readers have 1,797 samples.
SHARD_SIZES = (41, 26, 3, 61)


@dataclass(frozen=True)
class Block:
    """One block of Python; `title` is its file name, if it has one."""

    code: str
    line: int
    title: str | None
    runs: bool


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page, in order."""
    text = "\n" + page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match["info"])
        found.append(
            Block(
                code=textwrap.dedent(match["code"]),
                line=text.count("\n", 0, match.start("code")),
                title=title[1] if title else None,
                runs="<!-- no-run -->" not in match["before"],
            )
        )
    return found


def write_shards(directory: Path) -> None:
    """What the pages take to be there: small shards in the form of `shardwise.demo_data`."""
    directory.mkdir(parents=True, exist_ok=True)
    for shard, members in enumerate(_members()):
        write_tar(directory / f"train-{shard:06d}.tar", members)


@functools.cache
def _members() -> list[list[tuple[str, bytes]]]:
    """The files of each shard."""
    rng = np.random.default_rng(0)
    shards: list[list[tuple[str, bytes]]] = []
    sample = 0
    for size in SHARD_SIZES:
        members: list[tuple[str, bytes]] = []
        for _ in range(size):
            picture = io.BytesIO()
            pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(picture, format="JPEG")
            members += [
                (f"{sample:04d}.cls", b"%d" % (sample % 10)),
                (f"{sample:04d}.jpg", picture.getvalue()),
                (f"{sample:04d}.txt", b"a handwritten %d" % (sample % 10)),
            ]
            sample += 1
        shards.append(members)
    return shards
