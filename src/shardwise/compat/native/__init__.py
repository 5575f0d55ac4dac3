"""From programs written for WebDataset to shardwise's own datasets and loaders."""

from shardwise.compat.native.convert import from_webdataset
from shardwise.compat.native.dataset import ConvertedDataset

__all__ = ["ConvertedDataset", "from_webdataset"]
