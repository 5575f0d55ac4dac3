"""One rank: all clips once, with and without a shuffle; then epochs of equal steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

import shardwise.compat.webdataset as wds
from shardwise.compat.video2dataset.dataloader import get_video_dataset
from tests.support.media import numbers_in


def main(folder: Path, urls: list[str]) -> None:
    """Write what this rank read to a file of its own."""
    dist.init_process_group("gloo")
    found: dict[str, object] = {"wrong": 0}
    once = found["once"] = {}
    for shuffle in (0, 100):
        arguments = {"n_frames": 2, "fps": 5}
        dataset = get_video_dataset(urls, 2, shuffle=shuffle, decoder_kwargs=arguments)
        keys = []
        for batch in wds.WebLoader(dataset, batch_size=None, num_workers=2):
            keys += batch["__key__"]
            for start, clip in zip(batch["start_frame"].tolist(), batch["mp4"], strict=True):
                found["wrong"] += numbers_in(clip.numpy()) != [start, start + 5]
        once[str(shuffle)] = keys
    dataset = get_video_dataset(urls, 2, decoder_kwargs=arguments).with_epoch(3)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    found["steps"] = []
    for _ in range(2):
        steps = 0
        for _ in loader:
            # As in training: every step waits for all ranks.
            dist.barrier()
            steps += 1
        found["steps"].append(steps)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
