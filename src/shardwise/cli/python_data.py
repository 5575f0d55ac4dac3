"""`module:name` and `file.py:name`: a dataset that a Python program makes, such as a mixture."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from shardwise.dataset import Dataset

__all__ = ["is_python", "open_python", "python_object"]

# No scheme: "s3://..." has slashes behind its colon, and a path with a drive no dotted name.
_NAME = re.compile(r"(?P<module>[\w.]+|.+\.py):(?P<name>[A-Za-z_]\w*)")


def is_python(url: str) -> bool:
    """Whether it names an object of a Python module or file."""
    return _NAME.fullmatch(url) is not None and not Path(url).exists()


def open_python(url: str) -> Dataset:
    """The dataset of this name, or what the function of this name returns.

    The module is imported, as a program in the working directory would.

    Raises:
        click.UsageError: there is no such module or name, or it is no dataset.
    """
    from shardwise.dataset import Dataset

    found = python_object(url)
    if callable(found) and not isinstance(found, Dataset):
        found = found()
    if not isinstance(found, Dataset):
        raise click.UsageError(
            f"{url} is {found!r:.80}: name a shardwise.Dataset, or a function that returns one"
        )
    return found


def python_object(url: str) -> Any:
    """The object of this name; its module is imported.

    Raises:
        click.UsageError: there is no such module or name.
    """
    match = _NAME.fullmatch(url)
    assert match is not None
    module_name, name = match["module"], match["name"]
    module = _imported(module_name, url)
    if not hasattr(module, name):
        raise click.UsageError(f"{url}: {module_name} has no {name!r}")
    return getattr(module, name)


def _imported(name: str, url: str) -> ModuleType:
    if not name.endswith(".py"):
        # The console script has its own directory first in the path, not the working directory.
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise click.UsageError(f"{url}: there is no module {name!r} here") from None
        finally:
            sys.path.remove(str(Path.cwd()))
    path = Path(name)
    if not path.is_file():
        raise click.UsageError(f"{url}: there is no file {name!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # So that what it defines can be pickled.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
