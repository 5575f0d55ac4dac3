"""A loader with a sample that never comes; the program must end all the same."""

import threading

import numpy as np

import shardwise as sw


class Stuck:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == 40:
            threading.Event().wait()
        return {"x": np.int64(index)}


loader = sw.DataLoader(
    sw.wrap(Stuck()), batch_size=8, num_threads=2, rank=0, world_size=1, timeout=1.0, output="numpy"
)
seen = 0
try:
    for batch in loader:
        seen += len(batch["x"])
except sw.StallError as error:
    print(seen, type(error).__name__)
