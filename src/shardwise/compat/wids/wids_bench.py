"""wids' benchmark, which is gone: the command `shardwise bench` measures how fast samples load."""

from shardwise.compat.wids.gone import finder

__getattr__ = finder(__name__)
