"""Stages that treat one sample at a time: map, decode, select, rename, to_tuple and their like.

`handler` is called with any exception of the user's function, and returns whether to continue.
"""

from __future__ import annotations

import fcntl
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import IO, Any

from shardwise.compat.webdataset import autodecode, utils
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.left_out import LeftOut

Handler = Callable[[Exception], Any]


def each_result(
    data: Iterable[Any], function: Callable[[Any], Any], handler: Handler, none: Any = LeftOut
) -> Iterator[tuple[Any, Any]]:
    """Pairs of sample and result, but for results that are `none`; errors go to the handler."""
    left_out = LeftOut()

    def results() -> Iterator[tuple[Any, Any]]:
        for sample in data:
            try:
                result = function(sample)
            except Exception as error:  # noqa: BLE001 - the user's exception for their handler
                if not handler(error):
                    return
                result = none
            if result is none:
                left_out.add(sample)
                continue
            if left_out.num:
                left_out.clear()
            yield sample, result

    return results()


def getfirst(
    a: Mapping[str, Any],
    keys: str | Iterable[str],
    default: Any = None,
    missing_is_error: bool = True,
) -> Any:
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
    return LeftOut().filter(data, predicate)


def _log_keys(data: Iterable[Any], logfile: str | None = None) -> Iterator[Any]:
    """Append number, worker, rank and key of each sample to a file that processes share."""
    if not logfile:
        yield from data
        return
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
    return _map(data, autodecode.make_decoder(*args, **kw), handler)


def _map(
    data: Iterable[Any], f: Callable[[Any], Any], handler: Handler = reraise_exception
) -> Iterator[Any]:
    """Apply a function; None leaves a sample out, dicts without `__key__` get the sample's."""
    return _with_keys(each_result(data, f, handler, None))


def _with_keys(results: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
    for sample, result in results:
        if isinstance(result, dict) and "__key__" not in result and isinstance(sample, dict):
            result["__key__"] = sample.get("__key__")
        yield result


def _associate(data: Iterable[Any], associator: Any, **kw: Any) -> Iterator[Any]:  # noqa: ARG001
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
        for name, value in zip(fields, result, strict=True) if none_is_error else ():
            if value is None:
                raise ValueError(
                    f"{name!r} is None in the sample {sample.get('__key__')!r} of "
                    f"{sample.get('__url__')}; none_is_error=False permits that"
                )
        return result

    return (result for _, result in each_result(data, choose, handler))


def _map_tuple(
    data: Iterable[Any], *args: Callable[[Any], Any] | None, handler: Handler = reraise_exception
) -> Iterator[Any]:
    """Apply one function to each item of tuples; None leaves an item as it is."""
    functions = [utils.identity if function is None else function for function in args]
    wrong = [function for function in functions if not callable(function)]
    if wrong:
        raise TypeError(f"map_tuple needs functions, got {wrong}")

    def apply(sample: Any) -> tuple[Any, ...]:
        mapped = (function(x) for function, x in zip(functions, sample, strict=False))
        return (*mapped, *sample[len(functions) :])

    return (result for _, result in each_result(data, apply, handler))


def _alternatives(names: str | Sequence[str]) -> Sequence[str]:
    return names.split(";") if isinstance(names, str) else names


def _rename(
    data: Iterable[Any], handler: Handler = reraise_exception, keep: bool = True, **kw: Any
) -> Iterator[Any]:
    """Rename fields: `image="jpg;png"`; without `keep`, others are left out."""
    old = {name for names in kw.values() for name in _alternatives(names)}

    def rename(sample: Any) -> dict[str, Any]:
        renamed = {new: getfirst(sample, names) for new, names in kw.items()}
        others = {k: v for k, v in sample.items() if k not in old} if keep else {}
        return others | renamed

    return (renamed for _, renamed in each_result(data, rename, handler))


def _extract_keys(
    source: Iterable[Any],
    *patterns: Any,
    duplicate_is_error: bool = True,
    ignore_missing: bool = False,
) -> Iterator[Any]:
    """Make tuples of the fields that match patterns such as "*.jpg;*.png"."""
    for sample in source:
        result = []
        for pattern in patterns:
            names = [name for name in sample if any(map(_matcher(name), _alternatives(pattern)))]
            if len(names) > 1 and duplicate_is_error:
                raise ValueError(f"the fields {names} all match {pattern!r}")
            if names:
                result.append(sample[names[0]])
            elif not ignore_missing:
                raise ValueError(f"no field matches {pattern!r}: the sample has {list(sample)}")
        yield tuple(result)


def _matcher(name: str) -> Callable[[str], bool]:
    return lambda pattern: fnmatch("." + name, pattern) or fnmatch(name, pattern)


def _rename_keys(
    source: Iterable[Any],
    *args: tuple[str, str],
    keep_unselected: bool = False,
    must_match: bool = True,
    duplicate_is_error: bool = True,
    **kw: str,
) -> Iterator[Any]:
    """Rename fields by patterns: `("image", "*.jpg")` or `image="*.jpg"`; the last match counts."""
    renamings = [*args, *kw.items()]
    for sample in source:
        renamed: dict[str, Any] = {}
        matched = set()
        for path, value in sample.items():
            name = path.rpartition("/")[2].lower()
            hit = next(((n, p) for n, p in reversed(renamings) if fnmatch(name, p)), None)
            if hit is None:
                if keep_unselected:
                    renamed[path] = value
                continue
            matched.add(hit[1])
            if hit[0] not in renamed:
                renamed[hit[0]] = value
            elif duplicate_is_error:
                raise ValueError(f"two fields of {list(sample)} are to be called {hit[0]!r}")
        missing = [pattern for _, pattern in renamings if pattern not in matched]
        if must_match and missing:
            raise ValueError(f"no field of {list(sample)} matches {missing}")
        yield renamed


def decode_bin(stream: io.BufferedIOBase) -> bytes:
    return stream.read()


def decode_text(stream: io.BufferedIOBase) -> str:
    return stream.read().decode("utf-8")


def decode_pickle(stream: io.BufferedIOBase) -> Any:
    """The object that was pickled, which may run any code; `utils.enforce_security` forbids it."""
    utils.refuse_unsafe("Unpickling")
    return pickle.load(stream)  # noqa: S301 - what WebDataset does, and its switch forbids


default_decoders: list[tuple[str, Callable[..., Any]]] = [
    ("*.bin", decode_bin),
    ("*.txt", decode_text),
    ("*.pyd", decode_pickle),
]


def find_decoder(decoders: Sequence[tuple[str, Any]], path: str) -> Any:
    name = path.rpartition("/")[2]
    if name.startswith("__"):
        return utils.identity
    matches = _matcher(name.lower())
    return next((decode for pattern, decode in reversed(decoders) if matches(pattern)), None)


def _xdecode(
    source: Iterable[Any],
    *args: tuple[str, Any],
    must_decode: bool = True,
    defaults: Sequence[tuple[str, Any]] = default_decoders,
    **kw: Any,
) -> Iterator[Any]:
    """Decode fields by patterns: functions of a stream; False leaves bytes as they are."""
    decoders = [*defaults, *args, *((f"*.{k}", v) for k, v in kw.items())]
    for sample in source:
        decoded = {}
        for path, data in sample.items():
            is_metadata = path.startswith("__")
            decoder: Any = None if is_metadata else find_decoder(decoders, path)
            if decoder is None and must_decode and not is_metadata:
                raise ValueError(f"no decoder for {path!r}: give one, or pass must_decode=False")
            if decoder is None or decoder is False:
                decoded[path] = data
            else:
                decoded[path] = decoder(io.BytesIO(data) if isinstance(data, bytes) else data)
        yield decoded
