"""Batches of 38.5 MB from two processes; prints what came."""

import sys

import numpy as np

import shardwise as sw


class Pictures:
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"picture": np.full((3, 224, 224), index % 251, np.uint8)}


loader = sw.DataLoader(
    sw.wrap(Pictures()), batch_size=256, num_workers=2, rank=0, world_size=1, output=sys.argv[1]
)
batches = list(loader)
for batch in batches:
    wanted = np.asarray(batch["__index__"]) % 251
    assert (np.asarray(batch["picture"])[:, 0, 0, 0] == wanted).all()
    assert (np.asarray(batch["picture"])[:, 2, 223, 223] == wanted).all()
print(len(batches))
