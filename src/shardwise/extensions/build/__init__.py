"""Building datasets: each output shard is a function of the input, the recipe and its number.

`build` is `sw.build`, `fetch` the map function that fetches URLs. They import
neither a loader nor torch.
"""

from shardwise.extensions.build.build import build
from shardwise.extensions.build.fetch import fetch
from shardwise.extensions.build.state import BuildReport

__all__ = ["BuildReport", "build", "fetch"]
