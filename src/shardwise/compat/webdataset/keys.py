"""Stages that rename, pick and decode fields by patterns."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

from shardwise.compat.webdataset import utils
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.mapping import Handler, each_result, getfirst


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
    """All bytes of a stream."""
    return stream.read()


def decode_text(stream: io.BufferedIOBase) -> str:
    """The UTF-8 text of a stream."""
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
    """The last decoder whose pattern matches the name, or None."""
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
