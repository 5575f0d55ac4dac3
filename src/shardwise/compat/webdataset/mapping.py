"""Stages that treat one sample at a time: map, decode, select, to_tuple and their like.

`handler` is called with an exception of the user's function, and says whether to go on: this is
the border where any exception may come.
"""

# Every `except Exception` here hands the user's exception to the user's handler.
# ruff: noqa: BLE001

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.utils import identity

Handler = Callable[[Exception], Any]


def getfirst(
    a: Mapping[str, Any],
    keys: str | Iterable[str],
    default: Any = None,
    missing_is_error: bool = True,
) -> Any:
    """The value of the first of several keys that is there."""
    if isinstance(keys, str):
        if " " in keys:
            raise ValueError(f"{keys!r}: alternatives stand with ';' between them, without blanks")
        keys = keys.split(";")
    for key in keys:
        if key in a:
            return a[key]
    if missing_is_error:
        raise ValueError(
            f"none of {list(keys)} in the sample {a.get('__key__')!r} of {a.get('__url__')}: "
            f"it has {list(a)}"
        )
    return default


def transform_with(sample: Any, transformers: Iterable[Callable[[Any], Any] | None] | None) -> Any:
    """Apply functions to the first items of a list, None leaves an item as it is."""
    functions = list(transformers or ())
    if not functions:
        return sample
    result = list(sample)
    if len(functions) > len(result):
        raise ValueError(f"{len(functions)} functions for {len(result)} items")
    for place, function in enumerate(functions):
        if function is not None:
            result[place] = function(result[place])
    return result


def _info(
    data: Iterable[Any],
    fmt: str | None = None,
    n: int = 3,
    every: int = -1,
    width: int = 50,
    stream: IO[str] | None = None,
    name: str = "",
) -> Iterator[Any]:
    """Write the first samples that pass, and every so many, to a stream (stderr)."""
    out = sys.stderr if stream is None else stream
    for i, sample in enumerate(data):
        if i < n or (every > 0 and (i + 1) % every == 0):
            if fmt is None:
                lines = [f"--- {name}", *(f"{k} {repr(v)[:width]}" for k, v in sample.items())]
            else:
                lines = [fmt.format(**sample)]
            out.write("\n".join(lines) + "\n")
        yield sample


def _select(data: Iterable[Any], predicate: Callable[[Any], Any]) -> Iterator[Any]:
    """Keep the samples for which the predicate is true."""
    return filter(predicate, data)


def _log_keys(data: Iterable[Any], logfile: str | None = None) -> Iterator[Any]:
    """Append number, worker, rank and key of each sample to a file that processes share."""
    if not logfile:
        yield from data
        return
    import fcntl

    with open(logfile, "a") as stream:
        for i, sample in enumerate(data):
            words = (i, *(sample.get(name) for name in ("__worker__", "__rank__", "__key__")))
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
            try:
                stream.write("\t".join(map(str, words)) + "\n")
                stream.flush()
            finally:
                fcntl.flock(stream.fileno(), fcntl.LOCK_UN)
            yield sample


def _decode(
    data: Iterable[Any], *args: Any, handler: Handler = reraise_exception, **kw: Any
) -> Iterator[Any]:
    """Decode samples by functions and by names such as "rgb"; see `autodecode.Decoder`."""
    from shardwise.compat.webdataset import autodecode

    handlers = [autodecode.imagehandler(x) if isinstance(x, str) else x for x in args]
    return _map(data, autodecode.Decoder(handlers, **kw), handler)


def _map(
    data: Iterable[Any], f: Callable[[Any], Any], handler: Handler = reraise_exception
) -> Iterator[Any]:
    """Apply a function; None as its result leaves the sample out.

    Where samples are dicts, the result gets the sample's `__key__` if it has none.
    """
    for sample in data:
        try:
            result = f(sample)
        except Exception as error:
            if handler(error):
                continue
            break
        if result is None:
            continue
        if isinstance(result, dict) and "__key__" not in result and isinstance(sample, dict):
            result["__key__"] = sample.get("__key__")
        yield result


def _associate(data: Iterable[Any], associator: Any, **kw: Any) -> Iterator[Any]:  # noqa: ARG001
    """Add to each sample what a dict, or a function, gives for its key."""
    for sample in data:
        key = sample["__key__"]
        sample.update(associator(key) if callable(associator) else associator.get(key, {}))
        yield sample


def _map_dict(
    data: Iterable[Any], handler: Handler = reraise_exception, **kw: Callable[[Any], Any]
) -> Iterator[Any]:
    """Apply a function to each of some fields, in place."""
    wrong = [name for name, function in kw.items() if not callable(function)]
    if wrong or not kw:
        raise TypeError(f"map_dict needs field=function, got {kw}")
    for sample in data:
        try:
            for name, function in kw.items():
                sample[name] = function(sample[name])
        except Exception as error:
            if handler(error):
                continue
            break
        yield sample


def _to_tuple(
    data: Iterable[Any],
    *args: Any,
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> Iterator[Any]:
    """Make tuples of some fields: "jpg;png cls" is the first of two, and a third."""
    if none_is_error is None:
        none_is_error = missing_is_error
    fields = args[0].split() if len(args) == 1 and isinstance(args[0], str) else args
    is_plain = all(isinstance(name, str) and ";" not in name and " " not in name for name in fields)
    wanted = frozenset(fields) if is_plain else None
    for sample in data:
        try:
            if wanted is not None and wanted.issubset(sample):
                result = tuple([sample[name] for name in fields])
            else:
                result = tuple(
                    getfirst(sample, name, missing_is_error=missing_is_error) for name in fields
                )
            if none_is_error:
                _refuse_none(result, fields, sample)
        except Exception as error:
            if handler(error):
                continue
            break
        yield result


def _refuse_none(result: tuple[Any, ...], fields: Any, sample: Mapping[str, Any]) -> None:
    for name, value in zip(fields, result, strict=True):
        if value is None:
            raise ValueError(
                f"{name!r} is None in the sample {sample.get('__key__')!r} of "
                f"{sample.get('__url__')}; none_is_error=False permits that"
            )


def _map_tuple(
    data: Iterable[Any], *args: Callable[[Any], Any] | None, handler: Handler = reraise_exception
) -> Iterator[Any]:
    """Apply one function to each item of tuples; None leaves an item as it is."""
    functions = [identity if function is None else function for function in args]
    wrong = [function for function in functions if not callable(function)]
    if wrong:
        raise TypeError(f"map_tuple needs functions, got {wrong}")
    num = len(functions)
    for sample in data:
        try:
            mapped = [function(x) for function, x in zip(functions, sample, strict=False)]
        except Exception as error:
            if handler(error):
                continue
            break
        yield (*mapped, *sample[num:])
