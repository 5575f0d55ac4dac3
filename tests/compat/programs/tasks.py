"""One task of a launcher: `tasks.py NODESPLITTER WORKERS URL...` prints how many samples it reads.

It reads two epochs, by torch's own DataLoader, with new workers for each.
"""

from __future__ import annotations

import json
import os
import sys

from torch.utils.data import DataLoader

import shardwise.compat.webdataset as wds


def key(sample):
    return sample["__key__"]


if __name__ == "__main__":
    splitter, workers, *urls = sys.argv[1:]
    options = {"default": {}, "None": {"nodesplitter": None}, "own": {"nodesplitter": iter}}[
        splitter
    ]
    dataset = wds.WebDataset(urls, **options).map(key)
    loader = DataLoader(dataset, batch_size=None, num_workers=int(workers))
    found = [sorted(loader) for _ in range(2)]
    assert found[0] == found[1]
    # One write: tasks share a terminal.
    os.write(1, f"{json.dumps(found[0])}\n".encode())
