"""A build that the tests kill: `python -m tests.extensions.build.program OUT WORKERS`.

WORKERS is a number of processes, or the address of a Ray cluster.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import shardwise as sw

NUM_ITEMS, SAMPLES_PER_SHARD = 400, 10
# In place of another version of this module on another machine.
FACTOR = int(os.environ.get("FACTOR_OF_TEST", "1"))


def squared(item: int, rng: Any) -> dict[str, Any] | list[dict[str, Any]] | None:
    """One sample, none or two; some fail."""
    if item % 7 == 3:
        return None
    if item % 50 == 1:
        raise ValueError("no square of this one")
    noise = rng.bytes(2000)
    if item % 11 == 5:
        return [{"bin": noise, "cls": item}, {"bin": noise[:5], "cls": -item}]
    return {"bin": noise, "cls": item * item}


def scaled(item: int) -> dict[str, Any]:
    """What other code makes other samples of."""
    return {"cls": FACTOR * item}


def run(pattern: str, num_workers: int | None, **options: Any) -> dict[str, Any]:
    return sw.build(
        range(NUM_ITEMS),
        pattern,
        map=squared,
        samples_per_shard=SAMPLES_PER_SHARD,
        order="full",
        seed=5,
        num_workers=num_workers,
        on_error="record",
        **options,
    )


if __name__ == "__main__":
    if sys.argv[2].isdecimal():
        run(sys.argv[1], int(sys.argv[2]))
    else:
        run(sys.argv[1], None, ray=sys.argv[2])
