"""Arrays that were computed once and are kept in a file: columns of a dataset, and its packs.

A file of columns (`column_file`) with the digest of what the arrays were made of, and dtype and
shape of each. It appears whole or not at all; processes that make the same arrays write the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.storage.column_file import decode_columns, map_file, require_format, write_columns
from shardwise.storage.user_dirs import user_cache_dir
from shardwise.storage.write import sweep

# A dataclass.
T = TypeVar("T", bound=Any)

_logger = logging.getLogger("shardwise")

_FORMAT, _VERSION = "shardwise-arrays", "1"
# Characters of a column's name that are part of its file's name.
_MAX_NAME = 40


class KeptArrays:
    """The place of arrays made of one `origin`: a file in `directory`, else in the user's cache."""

    def __init__(self, directory: str | None, *, name: str, origin: str) -> None:
        self.digest = hashlib.sha256(f"shardwise arrays 1\n{origin}".encode()).hexdigest()[:32]
        plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in name[:_MAX_NAME])
        file_name = f"{plain.encode('ascii', 'replace').decode().replace('?', '_')}-{self.digest}"
        places = [] if directory is None else [Path(directory) / ".shardwise"]
        places.append(user_cache_dir() / "columns")
        self.paths = [place / f"{file_name}.swc" for place in places]

    def load(self) -> dict[str, NDArray[Any]] | None:
        """Read-only views of the mapped file; None without one, or for a damaged one (logged)."""
        for path in self.paths:
            try:
                return read_arrays(path, self.digest)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except DataError as error:
                _logger.warning("%s; it is made anew", error)
            except OSError as error:
                _logger.warning("can't read %s: %s; it is made anew", path, error.strerror)
        return None

    def forget(self) -> None:
        for path in self.paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def save(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the arrays in the first place that can be written; a log line, if none can."""
        problems = []
        for path in self.paths:
            try:
                sweep(path.parent)
                write_arrays(path, arrays, self.digest)
            except OSError as error:
                problems.append(f"{path.parent}: {error.strerror or error}")
            else:
                _logger.info("kept in %s", path)
                return
        _logger.warning("it can't be kept, and will be made again: %s", "; ".join(problems))


def kept_or_made(place: KeptArrays | None, kind: type[T], make: Callable[[], T]) -> T:
    """A dataclass of arrays and whole numbers, kept or made and kept; not kept without `place`."""
    if place is None:
        return make()
    arrays = place.load()
    if arrays is None:
        made = make()
        arrays = {each.name: np.asarray(getattr(made, each.name)) for each in fields(made)}
        # Mapped, it is memory that the ranks of a machine share.
        place.save(arrays)
        arrays = place.load() or arrays
    kept: T = kind(**{name: a if a.ndim else a.item() for name, a in arrays.items()})
    return kept


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], digest: str) -> None:
    """Write a file whole or not at all."""
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "digest": digest,
        "arrays": {name: [array.dtype.str, array.shape] for name, array in arrays.items()},
    }
    write_columns(path, metadata, {name: _as_numbers(array) for name, array in arrays.items()})


def _as_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """The same bytes as unsigned numbers in one dimension, as files of columns have them."""
    num_bytes = math.gcd(array.dtype.itemsize, 8)
    return np.ascontiguousarray(array).reshape(-1).view(f"u{num_bytes}")


def read_arrays(path: Path, digest: str) -> dict[str, NDArray[Any]]:
    """Map a file and check all of it (1 GB/s); DataError if damaged or of another origin."""
    data = map_file(str(path))
    with as_data_error("a column file that can't be used", url=str(path)):
        metadata, columns = decode_columns(data)
        require_format(metadata, _FORMAT, _VERSION)
        if metadata["digest"] != digest:
            raise DataError("a column file of another origin under this name", url=str(path))
        return {
            name: columns[name].view(dtype).reshape(shape)
            for name, (dtype, shape) in json.loads(metadata["arrays"]).items()
        }
