"""What must hold for any input: whole values, or an error of this library that says for what."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw
from shardwise.extensions.media.tar.sidecar import MediaSidecar
from shardwise.extensions.service.batches import decode_batch, decode_request
from shardwise.extensions.service.error_frames import decode_error
from shardwise.extensions.service.frames import FrameError, Kind, Limits, read_frame
from shardwise.extensions.service.greeting import ClientSide, Refusal, greet
from shardwise.plan.coverage_line import CoverageLine
from tests.fuzz.blobs import Script, kept, word
from tests.fuzz.cases import state_loader, write_sound_tar
from tests.fuzz.damage import Case
from tests.fuzz.folders import unzip
from tests.support.commands import CliRunner, cli

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
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    path.write_bytes(data)
    _CHECKS[target](path)


def _read(make: Callable[[], sw.Dataset], path: Path) -> list[Any] | None:
    """All samples, or None for an error as it should be."""
    try:
        return list(make())
    except sw.ShardwiseError as error:
        if str(path.parent) not in f"{getattr(error, 'url', '')}{error}":
            raise RawError(f"names no url: {error!r}") from error
    except BaseException as error:  # a panic in Rust is no Exception
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


def _columns(path: Path) -> None:
    """Columns that are kept: whole ones, or none."""
    place = kept(path.parent)
    place.paths = [path]
    try:
        place.load()
    except Exception as error:
        raise RawError(f"{type(error).__name__}: {error}") from error


def _media(path: Path) -> None:
    data = path.read_bytes()

    def indexes() -> list[Any]:
        sidecar = MediaSidecar(lambda start, stop: data[start:stop], path=str(path))
        rows = range(min(sidecar.header.num_samples, 100))
        found = []
        for row in rows:
            for field in sidecar.header.fields:
                try:
                    found.append(sidecar.index(row, field))
                except sw.DataError as error:
                    error.url = str(path)  # as the reader of a shard does
        return found

    _read(indexes, path)


def _coverage(path: Path) -> None:
    for line in path.read_bytes().decode("utf-8", "replace").splitlines():
        try:
            read = CoverageLine.from_text(line)
        except ValueError:
            continue
        except Exception as error:
            raise RawError(f"{type(error).__name__}: {error}") from error
        json.loads(read.to_text(), parse_constant=_refuse)
    done = CliRunner().invoke(cli, ["certify", str(path), "--json"], prog_name="shardwise")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise RawError(f"certify: {done.exception!r}") from done.exception
    if done.exit_code not in (0, 1, 2):
        raise RawError(f"certify ends with {done.exit_code}")


def _refuse(text: str) -> None:
    raise RawError(f"{text} in a line that was read")


def _frames(path: Path) -> None:
    """Greet with it and read it, as a server or as a client."""
    from shardwise.extensions.service.greeting import greeting_steps

    connection = Script(path.read_bytes())
    with suppress(FrameError, Refusal, EOFError, OSError, sw.ShardwiseError):
        try:
            if path.suffix == ".server":
                steps = greeting_steps(connection, None, has_dataset=True)
                with suppress(StopIteration):
                    while True:
                        connection.receive_into(next(steps))
                while True:
                    decode_request(read_frame(connection, Limits(1 << 20, 1 << 30)))
            side = ClientSide(word(), {}, pickled=bytes, needs_pickle=False, token=None)
            greet(connection, side)
            while True:
                frame = read_frame(connection, Limits(1 << 20, 1 << 30))
                str(decode_error(frame)) if frame.kind == Kind.ERROR else decode_batch(frame)
        except (FrameError, Refusal, EOFError, OSError, sw.ShardwiseError):
            raise
        except Exception as error:
            raise RawError(f"{type(error).__name__}: {error}") from error


# Formats that are read by code in C++ or Rust: in a process of its own, which that may end.


def _files(path: Path) -> list[str]:
    """The files of a dataset that begin one."""
    return [str(each) for each in sorted(path.rglob("case.*")) if each.suffix != ".idx"]


def _tokens(path: Path) -> list[Any]:
    urls = [str(path)] if (path / "index.json").exists() else _files(path)
    found = list(sw.tokens(urls, block=4))
    if not urls[0].endswith((".npy", ".bin")) or (path / "case.idx").exists():
        found += list(sw.tokens(urls, documents=True))
    return found


_READERS: dict[str, Callable[[Path], Any]] = {
    "arrow": lambda path: sw.parquet(_files(path)),
    "hf": sw.parquet,
    "jsonl": lambda path: [*sw.jsonl(path), *sw.jsonl(path, ())],
    "lance": lambda path: sw.lance(str(path)),
    "litdata": sw.litdata,
    "mds": sw.mds,
    "parquet": sw.parquet,
    "tfrecord": lambda path: sw.tfrecord(sorted(path.glob("*.tfrecord"))),
    "tokens": _tokens,
}
# Of a file of some kB, read on a busy machine.
_MAX_CPU_S, _MAX_WAIT_S, _MAX_GROWTH = 20, 120, 512 << 20


def _in_child(target: str, path: Path) -> None:
    child = _CHILDREN.get("reader")
    if child is None or child.poll() is not None:
        child = _CHILDREN["reader"] = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.checks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where Rust panics aloud
            text=True,
        )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{target} {path}\n")
    child.stdin.flush()
    if not select.select([child.stdout], [], [], _MAX_WAIT_S)[0]:
        child.kill()
        raise RawError(f"no answer within {_MAX_WAIT_S} s")
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
    "columns": _columns,
    "coverage": _coverage,
    "frames": _frames,
    "headers": _headers,
    "index": _index,
    "lists": _lists,
    "manifest": _manifest,
    "media": _media,
    "state": _state,
    **{target: partial(_in_child, target) for target in _READERS},
}


def _serve() -> None:
    """Read the files that are named on standard input; answer each with a line."""
    import resource

    # What a damaged length asks for is an error, and no reason to take all memory.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    for line in sys.stdin:
        target, _, name = line.rstrip("\n").partition(" ")
        path, answer = Path(name), "fine"
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + _MAX_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        try:
            if path.suffix == ".zip":
                path = path.with_suffix("")
                unzip(Path(name).read_bytes(), path)
            _read(lambda path=path, target=target: _READERS[target](path), path)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used.ru_maxrss
            if grown << 10 > _MAX_GROWTH:
                answer = f"it takes {grown >> 10} MB"
        except RawError as error:
            answer = ascii(str(error))
        with suppress(BrokenPipeError):
            print(answer, flush=True)


if __name__ == "__main__":
    _serve()
