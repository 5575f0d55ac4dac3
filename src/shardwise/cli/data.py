"""URLS to a dataset: of tar shards, tables or folders, or made in Python, by the names.

Tar shards are what the commands are about; `info`, `plan`, `bench` and `verify` take the rest as
well. The library is imported when data are opened.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from shardwise.errors import ShardwiseError, message_of
from shardwise.shown import shown_in

if TYPE_CHECKING:
    from shardwise.dataset import Dataset

__all__ = ["is_python", "kind_of", "open_data", "open_python", "python_value", "require_tar"]

# No scheme: "s3://..." has slashes behind its colon, and a path with a drive no dotted name.
_NAME = re.compile(r"(?P<module>[\w.]+|.+\.py):(?P<name>[A-Za-z_]\w*)")


def is_python(url: str) -> bool:
    """Whether it names an object of a Python module or file."""
    return _NAME.fullmatch(url) is not None and not Path(url).exists()


def open_python(url: str) -> Dataset:
    """The dataset of this name, or what the function of this name returns.

    The module is imported, as a program in the working directory would.

    Raises:
        click.UsageError: there is no such module or name, it is no dataset, or it is a function
            that needs arguments.
    """
    from shardwise.dataset import Dataset

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
    """The object of this name, or what the function of this name returns; its module is imported.

    Raises:
        click.UsageError: there is no such module or name, or its code raised.
    """
    match = _NAME.fullmatch(url)
    assert match is not None
    module_name, name = match["module"], match["name"]
    with _users_code(url):
        module = _imported(module_name, url)
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


_TABLES = (".parquet", ".parq", ".pq", ".arrow")
_LISTS = (".csv", ".tsv", ".jsonl", ".ndjson")
_TFRECORDS = (".tfrecord", ".tfrecords", ".tfrec")


def kind_of(urls: Sequence[str]) -> str:
    """What the URLS are: the function of shardwise that opens them, or "python".

    By their names, but for the local `index.json` of MDS and LitData, which is read.
    """
    if is_python(urls[0]):
        return "python"
    first = urls[0].rstrip("/").lower()
    if first.endswith(".lance"):
        return "lance"
    if first.endswith(_TABLES):
        return "parquet"
    if first.endswith(_LISTS):
        return "files"
    if first.endswith(_TFRECORDS):
        return "tfrecord"
    if first.endswith("index.json"):
        return _kind_of_index(Path(urls[0])) or "tar"
    return _kind_of_directory(Path(urls[0])) if os.path.isdir(urls[0]) else "tar"  # noqa: PTH112


def _kind_of_index(path: Path) -> str | None:
    """Whose `index.json` a local file is, if it is one."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    config = document.get("config")
    if isinstance(config, dict) and "chunks" in document:
        return "tokens" if config.get("item_loader") == "TokensLoader" else "litdata"
    return "mds" if "shards" in document and "version" in document else None


def _kind_of_directory(path: Path) -> str:
    """A directory without tars is a table, or one of files by class."""
    entries = list(path.iterdir())
    suffixes = {entry.suffix for entry in entries}
    if ".tar" in suffixes or not entries:
        return "tar"
    if (path / "_versions").is_dir():
        return "lance"
    if (kind := _kind_of_index(path / "index.json")) is not None:
        return kind
    if suffixes.intersection(_TFRECORDS):
        return "tfrecord"
    if suffixes.intersection(_TABLES):
        return "parquet"
    is_folder = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    holds_tars = any(below.suffix == ".tar" for entry in is_folder for below in entry.iterdir())
    return "files" if is_folder and not holds_tars else "tar"


def require_tar(urls: Sequence[str], command: str) -> None:
    """Refuse what is no tar, in a command that is about tar shards."""
    kind = kind_of(urls)
    if kind != "tar":
        what = "a dataset in Python" if kind == "python" else f"what shardwise.{kind} opens"
        raise click.UsageError(
            f"{command} is for tar shards, and {urls[0]!r} looks like {what}, which needs none of "
            "its indexes: `shardwise verify` reads and checks it, `info`, `plan`, `bench` and "
            "`convert` take it, too"
        )


def open_data(
    urls: Sequence[str], *, index: str | None = None, accept_unfinished: bool = False
) -> Dataset:
    """The dataset that the URLS name.

    Raises:
        click.UsageError: options of tar shards with other data, or several tables of Lance.
    """
    import shardwise as sw
    from shardwise.cli.shards import list_shards
    from shardwise.sources.tar.index.listed import is_manifest_file

    kind = kind_of(urls)
    if kind == "tar":
        # A manifest file is opened as it is: its shards are not looked at one by one.
        has_manifest = any(map(is_manifest_file, urls))
        shards = list(urls) if has_manifest else list_shards(urls)
        return sw.tar(shards, index=index, accept_unfinished=accept_unfinished)
    if index is not None or accept_unfinished:
        raise click.UsageError(f"--index and --accept-unfinished are for tar shards, not {kind}")
    several: dict[str, Callable[..., Dataset]] = {
        "parquet": sw.parquet, "mds": sw.mds, "tfrecord": sw.tfrecord,
    }  # fmt: skip
    if kind in several:
        return several[kind](urls)
    if len(urls) > 1:
        raise click.UsageError(f"give one of these, not {len(urls)}: each is a dataset")
    if kind == "python":
        return open_python(urls[0])
    if kind == "tokens":
        raise click.UsageError(
            f"{urls[0]!r} are tokens, whose samples are blocks: name a function, such as "
            "module:function, that returns sw.tokens(path, block=...)"
        )
    one: dict[str, Callable[..., Dataset]] = {
        "lance": sw.lance, "litdata": sw.litdata, "files": sw.files,
    }  # fmt: skip
    return one[kind](urls[0])
