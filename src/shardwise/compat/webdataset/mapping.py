"""Stages that treat one sample at a time: map, decode, select, to_tuple and their like.

`handler` is called with an exception of the user's function, and returns whether to continue: any
exception may come here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.utils import identity

Handler = Callable[[Exception], Any]


def each_result(
    data: Iterable[Any], function: Callable[[Any], Any], handler: Handler
) -> Iterator[tuple[Any, Any]]:
    """Samples with what a function makes of them; the handler decides where it raises."""
    for sample in data:
        try:
            result = function(sample)
        except Exception as error:  # noqa: BLE001 - the user's exception for the user's handler
            if handler(error):
                continue
            return
        yield sample, result


def getfirst(
    a: Mapping[str, Any],
    keys: str | Iterable[str],
    default: Any = None,
    missing_is_error: bool = True,
) -> Any:
    """The value of the first of several keys ("jpg;png", or a list) that is there."""
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
    """Write the first `n` samples, and each `every`-th one, to a stream (stderr)."""
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
    for sample, result in each_result(data, f, handler):
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
    """Apply functions to fields (field=function), in place."""
    wrong = [name for name, function in kw.items() if not callable(function)]
    if wrong or not kw:
        raise TypeError(f"map_dict needs field=function, got {kw}")

    def apply(sample: Any) -> None:
        for name, function in kw.items():
            sample[name] = function(sample[name])

    return (sample for sample, _ in each_result(data, apply, handler))


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
    names = frozenset(fields) if is_plain else None

    def choose(sample: Any) -> tuple[Any, ...]:
        if names is not None and names.issubset(sample):
            result = tuple([sample[name] for name in fields])
        else:
            result = tuple(
                getfirst(sample, name, missing_is_error=missing_is_error) for name in fields
            )
        if none_is_error:
            _refuse_none(result, fields, sample)
        return result

    return (result for _, result in each_result(data, choose, handler))


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

    def apply(sample: Any) -> tuple[Any, ...]:
        mapped = (function(x) for function, x in zip(functions, sample, strict=False))
        return (*mapped, *sample[len(functions) :])

    return (result for _, result in each_result(data, apply, handler))
