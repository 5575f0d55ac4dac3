"""What must hold for any input: whole values, or an error of this library that says for what."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw
from tests.fuzz.cases import Case, state_loader, write_sound_tar

_MOST_STATE_BYTES = 1024


class RawError(AssertionError):
    """Something came out of the library that must not."""


def check(target: str, case: Case, folder: Path) -> None:
    """Give a case to a part of the library, by a file in a folder of this check alone.

    Raises:
        RawError: an error is none of this library's, or names no url; a process was ended.
    """
    name, data = case
    path = folder / name
    for old in folder.glob("case*"):
        old.unlink()
    path.write_bytes(data)
    _CHECKS[target](path)


def _read(make: Callable[[], sw.Dataset], path: Path) -> list[Any] | None:
    """All samples, or None for an error as it should be."""
    try:
        return list(make())
    except sw.ShardwiseError as error:
        if str(path.parent) not in f"{getattr(error, 'url', '')}{error}":
            raise RawError(f"names no url: {error!r}") from error
    except Exception as error:
        raise RawError(f"{type(error).__name__}: {error}") from error
    return None


def _headers(path: Path) -> None:
    found = _read(lambda: sw.tar(path), path)
    # The second time by the index that the first one saved.
    again = _read(lambda: sw.tar(path), path)
    if found != again:
        raise RawError(f"{found} when it was indexed, {again} by its index")


def _index(path: Path) -> None:
    shard = path.with_name("case.tar")
    write_sound_tar(shard, index=False)
    found = _read(lambda: sw.tar(shard), path)
    if found is not None and len(found) > 1000:
        raise RawError(f"{len(found)} samples out of 9")


def _manifest(path: Path) -> None:
    shard = path.with_name("case.tar")
    write_sound_tar(shard)
    found = _read(lambda: sw.tar(path), path)
    if found is not None and len(found) != len(list(sw.tar(shard))):
        raise RawError(f"{len(found)} samples out of 9")


def _lists(path: Path) -> None:
    for number in range(2):
        (path.parent / f"{number}.txt").write_bytes(b"%d" % number)
    if path.suffix != ".json":
        _read(lambda: sw.files(path), path)
        return
    write_sound_tar(path.with_name("case.tar"), index=False)
    try:
        _read(lambda: sw.tar(path), path)
    except RawError as error:
        # What the user has to choose, or has named twice, is no damage.
        if type(error.__cause__) is not ValueError or "case" not in str(error):
            raise


def _state(path: Path) -> None:
    with state_loader() as loader:
        try:
            loader.load_state_dict(json.loads(path.read_bytes()))
        except (sw.StateError, TypeError):
            return
        except Exception as error:
            raise RawError(f"{type(error).__name__}: {error}") from error
        try:
            ids = [batch["__index__"] for batch in loader]
        except Exception as error:
            raise RawError(f"a state is taken, and then: {error!r}") from error
        if len(ids) > len(loader) or len(np.unique(np.concatenate([*ids, []]))) > 23:
            raise RawError(f"{len(ids)} batches of an epoch of {len(loader)}")
        if len(json.dumps(loader.state_dict())) > _MOST_STATE_BYTES:
            raise RawError(f"a state of more than {_MOST_STATE_BYTES} bytes")


def _parquet(path: Path) -> None:
    """In a process of its own, which pyarrow may end."""
    child = _CHILDREN.get("parquet")
    if child is None or child.poll() is not None:
        child = _CHILDREN["parquet"] = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.checks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{path}\n")
    child.stdin.flush()
    answer = child.stdout.readline().strip()
    if not answer:
        raise RawError(f"the process ended with {child.wait()}")
    if answer != "fine":
        raise RawError(answer)


def end_children() -> None:
    """End the processes that checks run in."""
    while _CHILDREN:
        _, child = _CHILDREN.popitem()
        child.kill()
        child.communicate()


_CHILDREN: dict[str, subprocess.Popen[str]] = {}
_CHECKS: dict[str, Callable[[Path], None]] = {
    "headers": _headers,
    "index": _index,
    "lists": _lists,
    "manifest": _manifest,
    "parquet": _parquet,
    "state": _state,
}


def _serve() -> None:
    """Read the Parquet files that are named on standard input; answer each with a line."""
    import resource

    # What a damaged length asks for is an error, and no reason to take all memory.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    for line in sys.stdin:
        path, answer = Path(line.rstrip("\n")), "fine"
        try:
            _read(lambda path=path: sw.parquet(path), path)
        except RawError as error:
            answer = ascii(str(error))
        with suppress(BrokenPipeError):
            print(answer, flush=True)


if __name__ == "__main__":
    _serve()
