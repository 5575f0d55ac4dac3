"""Stop four ranks in the middle of an epoch and go on with three: nothing lost, nothing twice.

The ranks are loops in one process here, so that it runs anywhere: python
examples/resume_on_other_ranks.py. Under torchrun, leave out rank and world_size.
"""

from __future__ import annotations

import json

import shardwise as sw

NUM_SAMPLES = 1000


def main() -> None:
    data = sw.wrap(range(NUM_SAMPLES))
    seen: list[int] = []
    states = []
    for rank in range(4):
        with sw.DataLoader(
            data, batch_size=24, shuffle=True, remainder="uneven", rank=rank, world_size=4
        ) as loader:
            for step, batch in enumerate(loader):
                seen += batch["__index__"].tolist()
                if step == 4:
                    break
            states.append(json.dumps(loader.state_dict()))
    assert len(set(states)) == 1, "all ranks have the same state"
    print(f"4 ranks used {len(seen)} samples, then stopped; the state is {states[0]}")

    for rank in range(3):
        with sw.DataLoader(
            data, batch_size=50, shuffle=True, remainder="uneven", rank=rank, world_size=3
        ) as loader:
            loader.load_state_dict(json.loads(states[0]))
            for batch in loader:
                seen += batch["__index__"].tolist()
    assert sorted(seen) == list(range(NUM_SAMPLES))
    print(f"3 ranks went on: all {NUM_SAMPLES} samples were used exactly once")


if __name__ == "__main__":
    main()
