"""The module's name in older releases of WebDataset."""

from __future__ import annotations

from shardwise.compat.webdataset.compat import FluidInterface, FluidWrapper
