"""`module:name` and `file.py:name` to the object, for commands that take a dataset in Python."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from shardwise.base.errors import ShardwiseError, message_of
from shardwise.base.shown import shown_in
from shardwise.dataset import Dataset

# No scheme: "s3://..." has slashes behind its colon, and a path with a drive no dotted name.
_NAME = re.compile(r"(?P<module>[\w.]+|.+\.py):(?P<name>[A-Za-z_]\w*)")


def is_python(url: str) -> bool:
    """Whether it names an object of a Python module or file."""
    return _NAME.fullmatch(url) is not None and not Path(url).exists()


def open_python(url: str) -> Dataset:
    """The dataset of this name, or what its function returns; imports the module."""
    value = python_value(url)
    if not isinstance(value, Dataset):
        raise click.UsageError(
            f"{url} is {value!r:.80}: name a shardwise.Dataset, or a function that returns one"
        )
    return value


def _require_no_arguments(function: Callable[..., Any], url: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C may have none
        return
    kinds = inspect.Parameter
    needed = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is kinds.empty
        and parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    if needed:
        raise click.UsageError(
            f"{url} needs {', '.join(needed)}: it is called without arguments; give them defaults, "
            "or name a function without any that calls it"
        )


def python_value(url: str) -> Any:
    """The object of a name, or what the function of that name returns; imports its module."""
    match = _NAME.fullmatch(url)
    assert match is not None
    module_name, name = match["module"], match["name"]
    with _users_code(url):
        module = _import_module(module_name, url)
        if not hasattr(module, name):
            raise click.UsageError(f"{url}: {module_name} has no {name!r}")
        value = getattr(module, name)
        if not callable(value):
            return value
        _require_no_arguments(value, url)
        return value()


@contextmanager
def _users_code(url: str) -> Iterator[None]:
    """Turn what the user's code raises into one line; errors of the library pass."""
    try:
        yield
    except (click.ClickException, ShardwiseError, OSError):
        raise
    except Exception as error:
        # A SyntaxError's message has the place; its traceback ends in the import.
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SyntaxError) else f" ({last.filename}, line {last.lineno})"
        reason = f"{type(error).__name__}: {message_of(error)}{place}"
        raise click.UsageError(
            shown_in(f"{url} raised {reason}; --traceback shows its frames")
        ) from error


def _import_module(name: str, url: str) -> ModuleType:
    if not name.endswith(".py"):
        # The console script has its own directory first in the path, not the working directory.
        here = str(Path.cwd())
        sys.path.insert(0, here)
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise click.UsageError(f"{url}: there is no module {name!r} here") from None
        finally:
            # The module may have changed the directory, or the path.
            with suppress(ValueError):
                sys.path.remove(here)
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
