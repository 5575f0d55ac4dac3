"""torch, which is the user's own: imported here first, so that one message reports it missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from shardwise.base.errors import MissingTorchError


def import_torch() -> ModuleType:
    """Torch itself."""
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingTorchError from None
