"""wids' `TarFileReader`: the members of a tar file by number."""

from __future__ import annotations

import os
from typing import IO, Any

from shardwise.compat.wids.wids_mmtar import MMIndexedTar


def find_index_file(file: str | os.PathLike[str]) -> str:
    """Where wids kept a pickled index of a tar file. It is neither read nor written here."""
    return f"{os.fspath(file)}.index"


class TarFileReader(MMIndexedTar):
    """The regular files in a tar file, in their order."""

    def __init__(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        index_file: Any = None,  # noqa: ARG002
        verbose: bool = True,  # noqa: ARG002
    ) -> None:
        super().__init__(file)
