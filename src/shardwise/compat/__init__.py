"""Other libraries' APIs on this library's parts, so that programs written for them run unchanged.

`install()` makes `import webdataset`, `import wids` and `import video2dataset` find them. Importing
this package costs nothing: theirs are imported when they are used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from shardwise.base.torch_import import import_torch

__all__ = ["install", "video2dataset", "webdataset", "wids"]

_PACKAGES = ("webdataset", "wids", "video2dataset")


def install() -> None:
    """Make imports of `webdataset`, `wids` and `video2dataset`, submodules included, load these.

    Call it before the first `import webdataset`, in the program's main file, so that torch's
    workers that are spawned call it too. Worker processes of `sw.DataLoader`, builds and batch
    servers call it before they get a dataset.

    Raises:
        ImportError: the other package of that name was imported already, or torch is missing.
    """
    from shardwise.compat.versions import answer_versions
    from shardwise.engine.processes.pickling import prepare_by

    import_torch()
    found = {}
    for name in _PACKAGES:
        package = import_module(f"{__name__}.{name}")
        present = sys.modules.get(name, package)
        if present is not package:
            raise ImportError(
                f"{name!r} was imported from {getattr(present, '__file__', None)} already: call "
                "shardwise.compat.install() before the first import of it"
            )
        found[name] = package
        for module in iter_modules(package.__path__):
            import_module(f"{package.__name__}.{module.name}")
        prefix = f"{package.__name__}."
        inner = [each for each in sys.modules if each.startswith(prefix)]
        found |= {f"{name}.{each.removeprefix(prefix)}": sys.modules[each] for each in inner}
    sys.modules.update(found)
    answer_versions()
    prepare_by(install)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
