"""Draws plan.svg and ranks.svg from real plans: python docs/images/plan.py."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from shardwise.extensions.share.placement import (
    holders,
    middle_samples,
    places_of,
    reading_ranks,
)
from shardwise.plan import Plan
from shardwise.plan.window import WindowSampler

SHARDS = (7, 2, 6, 1, 8)
LANES, WINDOW, EPOCH = 4, 3, 0
RANKS, BATCH = 2, 3
COLOURS = ("#8ecae6", "#ffb703", "#95d5b2", "#f28482", "#cdb4db")
BOX, LEFT, WIDTH = 22, 150, 760


class Drawing:
    """Boxes and texts, from the top down."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, *, kind: str = "label") -> None:
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def box(self, x: float, y: float, sample: int) -> None:
        """A sample, in its shard's colour."""
        shard = int(np.searchsorted(np.cumsum(SHARDS), sample, side="right"))
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{BOX - 2}" height="{BOX - 2}" rx="3" '
            f'fill="{COLOURS[shard]}"/>'
        )
        self.text(x + BOX / 2 - 1, y + BOX / 2 + 3, str(sample), kind="id")

    def boxes(self, x: float, y: float, samples: list[int], *, group: int = 0) -> None:
        """Samples behind one another, with a gap after each group."""
        for i, sample in enumerate(samples):
            gap = 6 * (i // group) if group else 0
            self.box(x + i * BOX + gap, y, sample)

    def svg(self, label: str, width: int, height: int) -> str:
        """The SVG, without a ground of its own, in the reader's colours, light or dark."""
        style = (
            "text{font-family:sans-serif;fill:#222}.label{font-size:13px}.small{font-size:11px;"
            "fill:#555}.id{font-size:10px;text-anchor:middle}"
            "@media(prefers-color-scheme:dark){text{fill:#ddd}.small{fill:#aaa}.id{fill:#222}}"
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{label}">\n<style>{style}</style>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def draw() -> str:
    """The picture as SVG."""
    sampler = WindowSampler(SHARDS, window=WINDOW, lanes=LANES)
    count = sum(SHARDS)
    order = sampler.indices(EPOCH, np.arange(count)).tolist()
    plan = Plan(count, batch_size=BATCH, world_size=RANKS, sampler=sampler)
    picture = Drawing()
    y = 16

    def row(title: str, small: str) -> None:
        picture.text(10, y + 14, title)
        picture.text(10, y + 28, small, kind="small")

    row("the manifest", "5 shards, ids 0 to 23")
    picture.boxes(LEFT, y, list(range(count)))
    y += 60

    row("the epoch's line", "shards in another order")
    # The line is the sections of the lanes, behind one another, before windows are shuffled.
    line = sampler._line(EPOCH)
    shards = np.searchsorted(line.ends, np.arange(count), side="right")
    places = (np.arange(count) + line.to_id[shards]).tolist()
    for lane, start in enumerate(line.starts.tolist()):
        size = int(line.sizes[lane])
        x = LEFT + start * BOX + 6 * (start // size)
        picture.boxes(x, y, places[start : start + size])
        picture.text(x, y + BOX + 11, f"to lane {lane}", kind="small")
    y += 72

    row("lanes", "shuffled in windows")
    for lane in range(LANES):
        picture.text(LEFT, y + 14, f"lane {lane}", kind="small")
        picture.boxes(LEFT + 50, y, order[lane::LANES])
        y += BOX + 2
    y += 28

    row("the epoch's order", "the lanes in turn")
    picture.boxes(LEFT, y, order, group=plan.global_batch_size)
    for step in range(plan.num_steps):
        x = LEFT + step * (plan.global_batch_size * BOX + 6)
        picture.text(x, y + BOX + 11, f"global batch {step}", kind="small")
    y += 72

    row("ranks", "runs, lane by lane")
    for rank in range(RANKS):
        picture.text(LEFT, y + 14, f"rank {rank}", kind="small")
        for step in range(plan.num_steps):
            x = LEFT + 50 + step * (BATCH * BOX + 24)
            picture.boxes(x, y, plan.indices(EPOCH, step, rank).tolist())
            if rank == RANKS - 1:
                picture.text(x, y + BOX + 11, f"step {step}", kind="small")
        y += BOX + 2
    return picture.svg("From shards to the batches of two ranks", WIDTH, y + 24)


def draw_ranks() -> str:
    """Two ranks and three take equal steps through one order, as SVG."""
    count, step_size, left = sum(SHARDS), 6, 90
    picture = Drawing()
    width = left + count * BOX + 12 * (count // step_size)
    y = 40
    for step in range(count // step_size):
        x = left + step * (step_size * BOX + 12)
        picture.text(x, 18, f"step {step}")
    for world_size in (1, 2, 3):
        plan = Plan(
            count, batch_size=step_size // world_size, world_size=world_size, shuffle="full"
        )
        picture.text(10, y + 14, f"{world_size} GPUs" if world_size > 1 else "one order")
        for rank in range(world_size):
            for step in range(plan.num_steps):
                x = left + step * (step_size * BOX + 12) + rank * plan.batch_size * BOX
                picture.boxes(x, y, plan.indices(EPOCH, step, rank).tolist())
            y += BOX + 2
        y += 14
    return picture.svg("Two GPUs and three take equal steps through one order", width, y)


def draw_caches() -> str:
    """Who holds the blocks of five shards in two epochs of three nodes, as SVG."""
    sizes, num_nodes, left = np.array([4] * 5), 3, 120
    plan = Plan(20, batch_size=2, world_size=num_nodes, shuffle="full", seed=3)
    shards, _, ids = middle_samples(sizes, np.full(5, 2), None)
    places = [places_of(plan, epoch, ids) for epoch in range(3)]
    picture = Drawing()
    picture.text(10, 18, "the plan says who holds a block, and where it lies next")
    before = np.full(len(ids), -1)
    for epoch in range(2):
        nodes = reading_ranks(plan, epoch, places[epoch])
        held = holders(nodes, places[epoch + 1], [len(ids)] * num_nodes)
        y = 40 + epoch * 190
        picture.text(10, y + 14, f"epoch {epoch + 1}")
        for node in range(num_nodes):
            top = y + 24 + node * 50
            picture.text(10, top + 16, f"node {node}")
            for at, block in enumerate(np.flatnonzero(held == node).tolist()):
                x = left + at * 110
                picture.parts.append(
                    f'<rect x="{x}" y="{top}" width="{BOX - 2}" height="{BOX - 2}" rx="3" '
                    f'fill="{COLOURS[shards[block]]}"/>'
                )
                picture.text(x + BOX / 2 - 1, top + BOX / 2 + 3, "ABCDEFGHIJ"[block], kind="id")
                last = int(before[block])
                source = "store" if last < 0 else "kept" if last == node else f"node {last}"
                picture.text(x + BOX + 4, top + 14, f"from {source}".replace("from kept", "kept"),
                             kind="small")  # fmt: skip
        before = held
    return picture.svg("Who holds which block in two epochs, by the plan", WIDTH, 420)


PICTURES = {"plan": draw, "ranks": draw_ranks, "caches": draw_caches}

if __name__ == "__main__":
    for name, function in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(function())
