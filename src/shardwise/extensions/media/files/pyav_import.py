"""PyAV, imported at first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shardwise.base.errors import MissingExtraError


def import_av(what: str) -> Any:
    """PyAV, with its log turned off: errors are raised, and name the sample."""
    try:
        av = import_module("av")
    except ModuleNotFoundError as error:
        if error.name != "av":
            raise
        raise MissingExtraError(f"{what} needs PyAV, which is not installed", extra="video") from (
            error
        )
    return av
