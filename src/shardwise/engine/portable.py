"""Objects as bytes that a fresh interpreter can read: what a dataset is sent to workers as.

Functions of the main program, lambdas and closures come along by value (cloudpickle). So do those
of modules that were made while the program ran, in a notebook's cell or by a test: nobody could
import them. Imports the standard library; cloudpickle where it is used.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["portable"]


def portable(value: Any) -> bytes:
    """Pickle an object for another process.

    Raises:
        Exception: whatever the pickling of a part of it raises.
    """
    import cloudpickle

    # What the user has registered stays registered.
    known = cloudpickle.list_registry_pickle_by_value()
    made_here = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and name == module.__name__ != "__main__"
        and getattr(module, "__spec__", None) is None
        and name not in known
    ]
    for module in made_here:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps(value)
    finally:
        for module in made_here:
            cloudpickle.unregister_pickle_by_value(module)
    return pickled
