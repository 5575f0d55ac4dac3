"""The file of a coverage directory that one loader of one rank appends to.

A line is one write to a file that no other process opens, so that SIGKILL leaves at most a cut last
line, which `shardwise certify` recognises by its missing end (I8). No lock, and no rank waits for
another's.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

from shardwise.base.arguments import path_text
from shardwise.base.errors import StorageError
from shardwise.base.process_group import shared_name
from shardwise.base.ranks import launched_run
from shardwise.plan.coverage_line import CoverageLine


class CoverageFile:
    """Appends lines to `directory/RUN-RANK.jsonl`; the file is made with the first line.

    Attributes:
        resumed: the id of the run that the loaded state was taken in; "" where it has none.

    Args:
        directory: a local directory, shared by the ranks or not; made if it is not there.

    Raises:
        StorageError: it can't be made.
        TypeError: it is not a path.
        ValueError: it is the URL of a store, or no file can have its name.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.resumed = ""
        self._num_resumed, self._is_regrouped = 0, False
        self._leave()
        self.directory = local_directory("coverage", directory)

    def _leave(self) -> None:
        self._descriptor: int | None = None
        self._pid = os.getpid()
        self._run: tuple[str, bool] | None = None

    def run(self, world_size: int, order: str) -> tuple[str, bool]:
        """The id of this run, and whether all ranks have the same.

        The process group's comes first: torchrun counts its restarts by node. It is the n-th one
        of this `order`, since a rank may have more loaders than others.
        """
        if self._pid != os.getpid():
            # A forked process is another run; the file stays its parent's.
            self.resumed = self.state_run
            self._leave()
        if self._run is None:
            own = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
            shared = shared_name(f"shardwise/run/{world_size}/{order}", own, is_new=True)
            is_launched = world_size > 1 and not self._is_regrouped
            if shared is None and is_launched and (launched := launched_run()):
                shared = f"{launched}.{self._num_resumed}" if self._num_resumed else launched
            self._run = (shared or own, shared is not None or world_size == 1)
        return self._run

    @property
    def state_run(self) -> str:
        """The id for a state taken now: of the run that wrote the lines before its position.

        "" where its ranks have no id in common: a state is equal on all ranks.
        """
        if self._run is None or self._descriptor is None:
            return self.resumed
        run, is_shared = self._run
        return run if is_shared else ""

    def resume(self, run: str, *, is_regrouped: bool = False) -> None:
        """Start another run with the next line, which continues from a state of `run`."""
        self._close()
        self.resumed, self._num_resumed = run, self._num_resumed + 1
        # Ranks that come and go have no launcher's id in common.
        self._is_regrouped |= is_regrouped

    def _close(self) -> None:
        if self._descriptor is not None and self._pid == os.getpid():
            os.close(self._descriptor)
        self._leave()

    def append(self, line: CoverageLine, *, is_others: bool = False) -> None:
        """Write a line; into the null device if another rank with the same batches writes it."""
        data = line.to_text().encode()
        try:
            if self._descriptor is None:
                null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if is_others else None
                self._descriptor = self._open_file(line) if null is None else null
            written = os.write(self._descriptor, data)
            if written < len(data):
                # A part of a line would spoil the next one.
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
        except OSError as error:
            raise not_writable("coverage", self.directory, error) from error
        if written < len(data):
            raise not_writable(
                "coverage", self.directory, OSError(f"{written} of {len(data)} bytes fit")
            )

    def _open_file(self, line: CoverageLine) -> int:
        """Open a separate file for this loader: a second loader of the run has another."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        number = 1
        while True:
            run = line.run if number == 1 else f"{line.run}.{number}"
            try:
                return os.open(self.directory / f"{run}-{line.rank:05d}.jsonl", flags, 0o666)
            except FileExistsError:
                number += 1

    def __del__(self) -> None:
        self._close()

    def __getstate__(self) -> dict[str, Any]:
        """Another process is another run, with a separate file."""
        return {**self.__dict__, "_descriptor": None, "_run": None, "resumed": self.state_run}


def local_directory(option: str, directory: str | os.PathLike[str]) -> Path:
    """The directory that an option names, made if it is not there; raises as `CoverageFile`."""
    if "://" in path_text(option, directory):
        raise ValueError(
            f"{option}={os.fspath(directory)!r}: give a local directory, to which a line can "
            "be appended; copy it to a store afterwards"
        )
    path = Path(directory).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise not_writable(option, path, error) from error
    return path


def not_writable(option: str, directory: Path, error: Exception) -> StorageError:
    """The error of a directory that can't be written to."""
    return StorageError(
        f"{option}={str(directory)!r}: {error}; make it writable, give another directory, or "
        f"leave {option}= out"
    )
