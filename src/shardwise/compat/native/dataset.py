"""A dataset that was made from a WebDataset pipeline, and what that says about its loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.dataset import Dataset


class ConvertedDataset(Dataset):
    """A `Dataset` like any other, which knows the loader's options that its pipeline held.

    Datasets that are made from it (`select`, `map`, ...) are plain ones: keep the options.

    Attributes:
        loader_options: keyword arguments of `shardwise.DataLoader`.
    """

    def __init__(self, dataset: Dataset, loader_options: dict[str, Any]) -> None:
        super().__init__(dataset.source, _transforms=dataset.transforms)
        self.loader_options = loader_options

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"loader_options": self.loader_options}


def decode_optional(dataset: Dataset, decoders: Mapping[str, Any]) -> Dataset:
    """The dataset with decoders for fields that samples may lack, as in a pipeline."""
    if not decoders:
        return dataset
    decoded = dataset.decode(**decoders).transforms
    required = dataset.transforms.required
    return Dataset(dataset.source, _transforms=replace(decoded, required=required))
