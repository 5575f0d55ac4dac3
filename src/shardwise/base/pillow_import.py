"""Pillow, imported at first use, so that one message reports that it is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shardwise.base.errors import MissingExtraError


def import_pillow() -> Any:
    """Pillow's module `PIL.Image`."""
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtraError("Pillow is not installed", extra="image") from error
