"""Make samples of shards: opening, expanding and grouping, in one stage or in three.

`tarfile_samples` and `WebDataset` make samples of a shard's bytes at once; `url_opener`,
`tar_file_expander` and `group_by_keys` are there for programs that put something between.
"""

# `except Exception`: the border to the user's handler.
# ruff: noqa: BLE001

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from shardwise.base.shown import shown
from shardwise.compat.webdataset.gopen import gopen
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.left_out import LeftOut, nothing_in_shards
from shardwise.compat.webdataset.tar_stream import (
    SKIPPED,
    DamagedShardError,
    ShardSamples,
    TarStream,
    base_plus_ext,
    chosen,
)
from shardwise.compat.webdataset.utils import pipelinefilter

Handler = Callable[[Exception], Any]
meta_prefix = meta_suffix = "__"
_logger = logging.getLogger("shardwise")

# Stands between two shards. It has a name without a key, so that code which groups members by
# itself passes it over.
_END_OF_SHARD: dict[str, Any] = {"fname": "", "data": b"", "__url__": None}


def valid_sample(sample: Any) -> bool:
    """Whether this is a sample: a dict that is not empty and not marked `__bad__`."""
    return isinstance(sample, dict) and bool(sample) and not sample.get("__bad__", False)


def url_opener(
    data: Iterable[dict[str, Any]], handler: Handler = reraise_exception, **kw: Any
) -> Iterator[dict[str, Any]]:
    left_out = LeftOut(nothing_in_shards)
    for shard in data:
        try:
            yield shard | {"stream": gopen(shard["url"], **kw)}
        except Exception as error:
            if handler(_name_shard(error, shard)):
                left_out.add(shard)
                continue
            break


def tar_file_iterator(
    fileobj: Any,
    skip_meta: str | None = SKIPPED,
    handler: Handler = reraise_exception,
    select_files: Callable[[str], Any] | None = None,
    rename_files: Callable[[str], str] | None = None,
    *,
    url: str | None = None,
) -> Iterator[dict[str, Any]]:
    """The regular files of a tar stream, as `{"fname": ..., "data": ...}`.

    Files whose name starts with `skip_meta` are left out. The handler is asked when something is
    wrong with the stream, which ends then, or when `select_files` or `rename_files` raise.
    """
    tar = TarStream(fileobj, url or str(getattr(fileobj, "name", fileobj)))
    members = chain.from_iterable(tar)
    try:
        for name, payload in chosen(members, select_files, rename_files, handler, skip_meta):
            yield {"fname": name, "data": payload}
    except Exception as error:
        handler(error)


def tar_file_expander(
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], Any] | None = None,
    rename_files: Callable[[str], str] | None = None,
    eof_value: dict[str, Any] | None = _END_OF_SHARD,
) -> Iterator[dict[str, Any]]:
    """The files of opened shards, and `eof_value` after each shard unless that is None."""
    for shard in data:
        about = _origin(shard["url"], shard.get("local_path"))
        try:
            with _closing(shard["stream"]):
                tar = TarStream(shard["stream"], shard["url"])
                members = chain.from_iterable(tar)
                for name, payload in chosen(members, select_files, rename_files, handler):
                    yield {"fname": name, "data": payload, **about}
            if eof_value is not None:
                yield eof_value if tar.has_end else eof_value | {"__has_end__": False}
        except Exception as error:
            if not handler(_name_shard(error, shard)):
                break
            # The sample that is cut must not come out.
            end = _END_OF_SHARD | {"__bad__": True}
            if isinstance(error, DamagedShardError) and error.key and rename_files is None:
                end["__cut__"] = f"{error.key}.{error.field or ''}"
            yield end


def group_by_keys(
    data: Iterable[dict[str, Any]],
    keys: Callable[[str], tuple[str | None, str | None]] = base_plus_ext,
    lcase: bool = True,
    suffixes: Iterable[str] | None = None,
    handler: Handler = reraise_exception,
) -> Iterator[dict[str, Any]]:
    wanted = None if suffixes is None else set(suffixes)
    shard: ShardSamples | None = None
    for found in data:
        try:
            name = found.get("fname")
            if shard is not None and (not name or found["__url__"] != shard.about["__url__"]):
                ended, shard = shard, None
                cut_key = keys(found["__cut__"])[0] if "__cut__" in found else None
                if not (found.get("__bad__") and ended.may_have(cut_key)):
                    yield from ended.finish(has_end=found.get("__has_end__", True))
                if ended.is_stopped:
                    return
            if not name:
                continue
            if shard is None:
                origin = _origin(found["__url__"], found.get("__local_path__"))
                shard = ShardSamples(origin, handler)
            key, field = keys(name)
            if key is None or field is None:
                continue
            field = field.lower() if lcase else field
            is_wanted = wanted is None or field in wanted
            if (done := shard.put(key, field, found["data"], is_wanted=is_wanted)) is not None:
                yield done
        except Exception as error:
            if handler(error):
                continue
            return
        if shard.is_stopped:
            return
    if shard is not None:
        yield from shard.finish()


def expand_samples(
    shards: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], Any] | None = None,
    rename_files: Callable[[str], str] | None = None,
) -> Iterator[dict[str, Any]]:
    """The samples of opened shards: what `tar_file_expander` and `group_by_keys` do, at once.

    The samples before the damage of a shard are yielded; then `handler` is called. If it decides
    to stop, the part of the cut sample that was read is yielded last, as in WebDataset.
    """
    is_plain = select_files is None and rename_files is None
    left_out = LeftOut(nothing_in_shards)
    for shard in shards:
        samples = ShardSamples(_origin(shard["url"], shard.get("local_path")), handler)
        tar = TarStream(shard["stream"], shard["url"])
        try:
            with _closing(shard["stream"]) as close_quietly:
                for members in tar:
                    yield from samples.add(
                        members if is_plain else chosen(members, select_files, rename_files)
                    )
                    if samples.is_stopped:
                        close_quietly()
                        return
                yield from samples.finish(has_end=tar.has_end)
                left_out.clear() if samples.has_any else left_out.add(shard)
        except Exception as error:
            cut_key = error.key if isinstance(error, DamagedShardError) else None
            if rename_files is None and not samples.may_have(cut_key):
                # If a member of the next sample is cut, this one is whole.
                yield from samples.finish()
            if handler(_name_shard(error, shard)):
                left_out.clear() if samples.has_any else left_out.add(shard)
                continue
            if samples.sample is not None:
                _logger.warning("the last sample of %s is cut: %s", shard["url"], error)
                yield samples.sample
            return


def tarfile_samples(
    src: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], Any] | None = None,
    rename_files: Callable[[str], str] | None = None,
) -> Iterator[dict[str, Any]]:
    return expand_samples(url_opener(src, handler), handler, select_files, rename_files)


tarfile_to_samples = pipelinefilter(tarfile_samples)


def _origin(url: str, local_path: str | None) -> dict[str, Any]:
    """The fields about a shard in all of its members and samples."""
    return {"__url__": url} | ({} if local_path is None else {"__local_path__": local_path})


def _name_shard(error: Exception, shard: dict[str, Any]) -> Exception:
    """Add the name of the shard to an error that does not name it."""
    url = shown(str(shard["url"]))
    if not any(url in text for text in (str(error), *getattr(error, "__notes__", ()))):
        error.add_note(f"in the shard {url}")
    return error


@contextlib.contextmanager
def _closing(stream: Any) -> Iterator[Callable[[], None]]:
    """Close a stream; how it ends counts only where it was read to its end."""
    # Kept at hand: at the interpreter's end the names of modules may be gone.
    close, quietly = getattr(stream, "close", lambda: None), contextlib.suppress

    def close_quietly() -> None:
        with quietly(Exception):
            close()

    try:
        yield close_quietly
    except BaseException:
        close_quietly()
        raise
    close()
