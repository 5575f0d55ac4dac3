"""Pillow, imported at first use, so that one message reports that it is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shardwise.base.errors import imports_of


def import_pillow() -> Any:
    """Pillow's module `PIL.Image`."""
    with imports_of("image", "Pillow is not installed"):
        return import_module("PIL.Image")
