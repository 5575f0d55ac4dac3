"""The form of a state in checkpoints of `torch.distributed.checkpoint` (DCP): one leaf.

DCP saves the leaves of a dict, and loads those that the dict of a fresh object has. What an order
depends on has other entries at other positions, of a mixture those of the datasets that were drawn.
So DCP gets a state as one text; everyone else gets it as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardwise.base.errors import StateError
from shardwise.base.framework_guards import active_guards

_LEAF = "json"


def for_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state, or where DCP requests it, one leaf of it with epoch and position."""
    if not any(guard.saves_leaves() for guard in active_guards()):
        return state
    return {"epoch": state["epoch"], "position": state["position"], _LEAF: json.dumps(state)}


def from_checkpoint(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state in what DCP loaded; any other state as it is.

    Raises:
        StateError: it is not JSON.
    """
    text = state.get(_LEAF) if isinstance(state, Mapping) else None
    if not isinstance(text, str):
        return state
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        raise StateError(f"the state's {_LEAF!r} is no JSON: {error}") from None
