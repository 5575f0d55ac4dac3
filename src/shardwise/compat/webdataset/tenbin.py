"""Arrays in the format of `.ten` fields, by the names of WebDataset's module."""

from shardwise.codecs.tenbin import *  # noqa: F403 - its names are this module's
