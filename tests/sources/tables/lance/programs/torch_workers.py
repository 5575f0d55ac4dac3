"""One rank: reads a table through torch's DataLoader, with workers started as it is told.

Arguments: the table, the directory to write to, and a JSON list of {"start", "workers", "runs"}.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

GLOBAL_BATCH, SEED = 64, 5


def main(table, out, todo):
    from torch.utils.data import DataLoader

    import shardwise as sw

    # What Lance says at every fork; no worker touches Lance here.
    warnings.filterwarnings("ignore", "lance is not fork-safe")
    ds = sw.lance(table, columns=("id", "bin")).decode(bin=sw.array("<i8", shape=()))
    # Lance was used in this process, as it is where a program looks at its data first.
    assert ds[5]["id"] == 5
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with open(Path(out) / f"rank-{rank}.jsonl", "w") as lines:
        for task in json.loads(todo):
            it = sw.torch.IterableDataset(
                ds,
                batch_size=GLOBAL_BATCH // world_size,
                shuffle=True,
                seed=SEED,
                remainder="uneven",
            )
            options = {"multiprocessing_context": task["start"]} if task["workers"] else {}
            for _ in range(task["runs"]):
                loader = DataLoader(it, batch_size=None, num_workers=task["workers"], **options)
                steps = []
                for batch in loader:
                    ids = batch["__index__"].tolist()
                    assert batch["id"].tolist() == batch["bin"].tolist() == ids
                    steps.append(ids)
                lines.write(json.dumps({"task": task, "steps": steps}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
