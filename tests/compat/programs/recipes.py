"""Programs written for WebDataset, each a function of (urls, workers) that yields what it reads.

Run as a program on every rank: `recipes.py OUT URL...` writes one JSON file a rank. The imports are
those of the programs; `install` makes them ours.
"""

# ruff: noqa: E402

from __future__ import annotations

import json
import os
import sys
from multiprocessing import Value
from pathlib import Path

import shardwise.compat

shardwise.compat.install()

import torch
import torch.distributed as dist
import webdataset as wds
from torch.utils.data import DataLoader

from tests.support.open_clip import (
    ResampledByEpoch,
    ShuffleByEpoch,
    log_and_continue,
    tarfile_to_samples_without_errors,
)


def preprocess(sample):
    image, info = sample
    assert image.shape == (6, 8, 3), image.shape
    return image.mean(), info["id"]


def article_resampled(url, workers):
    dataset = (
        wds.WebDataset(url, resampled=True)
        .shuffle(1000)
        .decode("rgb")
        .to_tuple("png", "json")
        .map(preprocess)
        .with_epoch(10000)
    )
    for _, ids in DataLoader(dataset, batch_size=100, num_workers=workers):
        yield ids.tolist()


def article_pipeline(urls, workers):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.shuffle(100),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(1000),
        wds.decode("torchrgb"),
        wds.to_tuple("png", "json"),
        wds.batched(16),
    )
    for images, infos in DataLoader(dataset, batch_size=None, num_workers=workers):
        assert images.shape[1:] == (3, 6, 8), images.shape
        yield [info["id"] for info in infos]


def article_video(urls, workers):
    dataset = wds.WebDataset(urls).decode(wds.torch_video).to_tuple("mp4", "json")
    for (frames, _, _), info in DataLoader(dataset, batch_size=None, num_workers=workers):
        assert frames.shape == (3, 16, 32, 3), frames.shape
        yield [info["id"]]


# The ImageNet recipe: once with what the library does by itself, once with helpers.


def my_nodesplitter(source):
    rank, world_size, _, _ = wds.utils.pytorch_worker_info()
    for i, item in enumerate(source):
        if i % world_size == rank:
            yield item


def to_array(image):
    return torch.tensor(list(image.convert("RGB").tobytes()))


def imagenet(urls, workers, *, helpers):
    more = {"nodesplitter": my_nodesplitter} if helpers else {}
    dataset = (
        wds.WebDataset(urls, shardshuffle=1000, handler=wds.ignore_and_continue, **more)
        .shuffle(5000)
        .decode("pil")
        .to_tuple("jpg;png;jpeg cls json")
        .map_tuple(to_array, None, lambda info: info["id"])
        .batched(4, partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
    world_size = wds.utils.pytorch_worker_info()[1]
    loader = loader.with_epoch(105 // (4 * world_size))
    for _ in range(2):
        for images, _, ids in loader:
            assert images.shape == (4, 6 * 8 * 3)
            yield ids.tolist()


def imagenet_resampled(urls, workers):
    dataset = wds.WebDataset(urls, resampled=True, nodesplitter=None)
    dataset = dataset.shuffle(100).decode("pil").to_tuple("png", "json").batched(4, partial=False)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
    loader = loader.unbatched().shuffle(100).batched(8).with_epoch(30)
    for _, infos in loader:
        yield [info["id"] for info in infos]


def open_clip(urls, workers, *, helpers, resampled):
    batch_size, num_samples, epoch = 4, 105, Value("i", 0)
    if resampled:
        stages = [ResampledByEpoch(urls, epoch) if helpers else wds.ResampledShards(urls)]
    else:
        shuffle = ShuffleByEpoch(epoch) if helpers else wds.detshuffle(2000, 500)
        stages = [wds.SimpleShardList(urls), shuffle, wds.split_by_node, wds.split_by_worker]
    read = tarfile_to_samples_without_errors if helpers else wds.tarfile_to_samples()
    stages += [
        read,
        wds.shuffle(5000, initial=1000),
        wds.select(lambda sample: "cls" in sample and "png" in sample),
        wds.decode("pilrgb", handler=log_and_continue),
        wds.rename(image="jpg;png;jpeg;webp", text="json"),
        wds.map_dict(image=to_array, text=lambda info: info["id"]),
        wds.to_tuple("image", "text"),
        wds.batched(batch_size, partial=False),
    ]
    world_size = wds.utils.pytorch_worker_info()[1]
    num_batches = -(-num_samples // (batch_size * world_size))
    worker_batches = -(-num_batches // max(1, workers))
    dataset = wds.DataPipeline(*stages).with_epoch(worker_batches)
    loader = wds.WebLoader(
        dataset,
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    for number in range(2):
        epoch.value = number
        for images, ids in loader:
            assert images.shape == (4, 6 * 8 * 3)
            yield ids.tolist()


RECIPES = {
    "article_resampled": article_resampled,
    "article_pipeline": article_pipeline,
    "imagenet": lambda urls, workers: imagenet(urls, workers, helpers=False),
    "imagenet with helpers": lambda urls, workers: imagenet(urls, workers, helpers=True),
    "imagenet resampled": imagenet_resampled,
    **{
        f"open_clip{' with helpers' * helpers}{' resampled' * resampled}": (
            lambda urls, workers, h=helpers, r=resampled: open_clip(
                urls, workers, helpers=h, resampled=r
            )
        )
        for helpers in (False, True)
        for resampled in (False, True)
    },
}


def run_all(urls, workers):
    videos = [url for url in urls if "video" in Path(url).name]
    urls = [url for url in urls if url not in videos]
    found = {name: list(recipe(urls, workers)) for name, recipe in RECIPES.items()}
    return found | {"article_video": list(article_video(videos, workers))}


if __name__ == "__main__":
    out, *urls = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    found = run_all(urls, workers=2)
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
