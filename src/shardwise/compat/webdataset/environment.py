"""The environment variables that WebDataset reads, in one place.

Programs and job scripts set them, so this package reads them too; nothing else of shardwise does.
They are read when they are asked for, not when a module is imported.
"""

from __future__ import annotations

import os


def variable(name: str, default: str | None = None) -> str | None:
    """The value of an environment variable, or `default` where it is not set."""
    return os.environ.get(name, default)


def is_on(name: str) -> bool:
    """Whether a switch is set to a whole number other than 0."""
    text = variable(name) or "0"
    try:
        return bool(int(text))
    except ValueError:
        raise ValueError(f"the environment variable {name}={text!r}: set it to 0 or 1") from None
