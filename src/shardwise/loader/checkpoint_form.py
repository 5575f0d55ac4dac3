"""The form of a state in checkpoints of `torch.distributed.checkpoint` (DCP): one leaf.

DCP saves the leaves of a dict, and loads those that the dict of a fresh object has. What an order
depends on has other entries at other positions, of a mixture those of the datasets that were drawn.
So DCP gets a state as one text; everyone else gets it as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from shardwise.errors import StateError
from shardwise.loader.frameworks import callers

_DCP = "torch.distributed.checkpoint"
_LEAF = "json"


def for_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """The state, or what DCP is to save of it: all in one leaf, beside epoch and position.

    DCP calls `state_dict()` without a word, perhaps through a `Stateful` of the program's, so the
    call stack is looked at.
    """
    if _DCP not in sys.modules or not any(name.startswith(_DCP) for name, _ in callers()):
        return state
    return {"epoch": state["epoch"], "position": state["position"], _LEAF: json.dumps(state)}


def from_checkpoint(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state in what DCP loaded; any other state as it is.

    Raises:
        StateError: it is no JSON.
    """
    text = state.get(_LEAF) if isinstance(state, Mapping) else None
    if not isinstance(text, str):
        return state
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        raise StateError(f"the state's {_LEAF!r} is no JSON: {error}") from None
