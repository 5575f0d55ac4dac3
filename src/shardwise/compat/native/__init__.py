"""Convert programs written for WebDataset to shardwise's own datasets and loaders."""

from shardwise.compat.native.convert import ConvertedDataset, from_webdataset

__all__ = ["ConvertedDataset", "from_webdataset"]
