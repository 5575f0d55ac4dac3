"""torch's names that the pipelines build on."""

from __future__ import annotations

from torch import Tensor as TorchTensor
from torch.utils.data import DataLoader, IterableDataset
