"""What users of open_clip write by hand: epochs that the program sets, a reader that skips."""

from __future__ import annotations

import random

import torch
from torch.utils.data import IterableDataset, get_worker_info

import shardwise.compat.webdataset as wds
from shardwise.compat.webdataset.tariterators import (
    base_plus_ext,
    tar_file_expander,
    url_opener,
    valid_sample,
)


class ShuffleByEpoch(wds.PipelineStage):
    """One order of shards for all readers, by an epoch in shared memory (`Value("i", 0)`)."""

    def __init__(self, epoch):
        self.epoch = epoch

    def order(self, shards, epoch):
        return wds.filters._shuffle(iter(shards), 2000, 500, random.Random(epoch))

    def run(self, src):
        return self.order(src, self.epoch.value)


class ResampledByEpoch(IterableDataset):
    """Shards without end, in each worker others."""

    def __init__(self, urls, epoch, weights=None):
        self.urls, self.weights, self.epoch = wds.shardlists.expand_urls(urls), weights, epoch

    def __iter__(self):
        info = get_worker_info()
        seed = (info.seed if info else torch.initial_seed()) + self.epoch.value
        rng = random.Random(seed)
        while True:
            yield {"url": rng.choice(self.urls)}


def group_without_errors(data, keys=base_plus_ext):
    sample = None
    for member in data:
        key, field = keys(member["fname"])
        if key is None:
            continue
        if sample is None or key != sample["__key__"] or field in sample:
            if valid_sample(sample):
                yield sample
            sample = {"__key__": key, "__url__": member["__url__"]}
        sample[field.lower()] = member["data"]
    if valid_sample(sample):
        yield sample


def log_and_continue(error):
    print("left out:", repr(error))
    return True


def tarfile_to_samples_without_errors(src, handler=log_and_continue):
    streams = url_opener(src, handler=handler)
    return group_without_errors(tar_file_expander(streams, handler=handler))
