"""Batches as torch's tensors, on a device; a loader as torch's class."""

from shardwise.base.torch_import import import_torch

import_torch()
