"""A mixture of two datasets whose weights change in the middle of a run, and a third one joins.

`sw.mix` brings its own order: exact shares, each dataset in epochs of its own. The run that goes on
with other weights takes up the state of the run before, whose samples do not change.

    python examples/mixture.py
"""

from __future__ import annotations

from collections import Counter

import shardwise as sw

web = sw.wrap([{"text": f"web {i}"} for i in range(7000)])
code = sw.wrap([{"text": f"code {i}"} for i in range(900)])
math = sw.wrap([{"text": f"math {i}"} for i in range(500)])

FIRST = {"web": 0.7, "code": 0.3}
# From sample 2,560 on, over all ranks.
LATER = {"web": 0.5, "code": 0.25, "math": 0.25}


def main() -> None:
    """Train on ten blocks of web and code, then go on with some mathematics."""
    mixed = sw.mix({"web": (web, 0.7), "code": (code, 0.3)}, until=5120, seed=5)
    loader = sw.DataLoader(mixed, batch_size=256)
    batches = iter(loader)
    for _ in range(10):
        batch = next(batches)
        # 256 is a block, so that each batch has its share of code, to a sample or two.
        assert abs(Counter(batch["__source__"])["code"] - 0.3 * 256) < 5
    state = loader.state_dict()
    seen = loader.stats()["sources"]["code"]
    print(f"{seen['samples']} samples of code, {seen['epochs']:.2f} epochs of it")

    parts = {"web": web, "code": code, "math": math}
    changed = sw.mix(parts, schedule=[(0, FIRST), (2560, LATER)], until=5120, seed=5)
    loader = sw.DataLoader(changed, batch_size=256)
    loader.load_state_dict(state)
    rest = Counter(source for batch in loader for source in batch["__source__"])
    print(f"then {dict(sorted(rest.items()))}")
    assert abs(rest["math"] - 640) < 3

    # A state from after the change is none of the first schedule.
    loader.load_state_dict({**state, "position": 2560})
    next(iter(loader))
    try:
        sw.DataLoader(mixed, batch_size=256).load_state_dict(loader.state_dict())
    except sw.StateError as error:
        print(error)


if __name__ == "__main__":
    main()
