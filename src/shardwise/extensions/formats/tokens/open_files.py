"""Open files of tokens by URL: each file's format is found by its name and by files beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import path_text
from shardwise.base.errors import DataError, MissingShardError
from shardwise.base.parallel import in_threads
from shardwise.base.shown import base_name
from shardwise.extensions.formats.tokens import litdata, megatron
from shardwise.extensions.formats.tokens.litdata import open_litdata
from shardwise.extensions.formats.tokens.megatron import open_megatron
from shardwise.extensions.formats.tokens.raw import open_npy, open_raw
from shardwise.extensions.formats.tokens.token_file import TokenFile
from shardwise.storage import FileStat, StorageOptions, expand, is_local, local_path, open_file
from shardwise.storage.found_once import found_once
from shardwise.storage.missing import explain_missing

_SUFFIXES = (".bin", ".npy")
_LITDATA = "index.json"
# Opening a file waits for a store or a network file system.
_THREADS = 16


def expand_tokens(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: StorageOptions
) -> list[str]:
    """Files of tokens and indexes of LitData; a directory's index replaces the directory."""
    many: Any = [urls] if isinstance(urls, str | os.PathLike) else urls
    if isinstance(many, bytes) or not isinstance(many, Sequence):
        raise TypeError(f"urls must be a str, a path or a list of these, not {type(urls).__name__}")
    return expand([_find_index(item) for item in many], suffixes=_SUFFIXES, options=options)


def _find_index(item: Any) -> Any:
    text = path_text("each of urls", item)
    if text and is_local(text):
        index = os.path.join(local_path(text), _LITDATA)  # noqa: PTH118 - keeps './'
        return index if os.path.isfile(index) else text  # noqa: PTH113 - as above
    return text


def open_token_files(
    urls: Sequence[str], dtype: np.dtype[Any] | None, options: StorageOptions
) -> list[TokenFile]:
    """Open files, which must be of one dtype, and check their headers."""

    def read() -> list[Any]:
        opened = in_threads(partial(_open, dtype=dtype, options=options), urls, _THREADS)
        return [
            [file.url, file.stat, file.dtype.str, file.offset, file.num_tokens, file.index]
            for each in opened
            for file in each
        ]

    with explain_missing(urls):
        # One rank of a process group reads those of remote files for all.
        found = found_once(f"tokens {dtype}", urls, options, read)
    files = [
        TokenFile(url, FileStat(*stat), np.dtype(own), offset, num_tokens, tuple(index))
        for url, stat, own, offset, num_tokens, index in found
    ]
    if not files:
        raise DataError("no chunk of tokens is in it", url=urls[0])
    for file in files[1:]:
        if file.dtype != files[0].dtype:
            raise DataError(
                f"its tokens are {file.dtype.name}, and those of {files[0].url!r} "
                f"{files[0].dtype.name}: read them as two datasets",
                url=file.url,
            )
    return files


def read_documents(file: TokenFile, options: StorageOptions) -> NDArray[np.int64]:
    """Where the documents of a file end: int64 `[documents]`, ascending, the last is `num_tokens`.

    Raises:
        DataError: its format does not say so, or it is damaged.
    """
    if not file.index:
        raise DataError(
            "its format does not say where documents end: documents=True is for Megatron's .bin "
            "with .idx and for LitData's chunks",
            url=file.url,
        )
    read = litdata.read_documents if len(file.index) == 1 else megatron.read_documents
    ends = read(file, options)
    if len(ends) and ends[-1] != file.num_tokens:
        raise DataError(
            f"its documents end at token {ends[-1]}, and it had {file.num_tokens} when it was "
            "opened: it or its index was replaced since",
            url=file.url,
        )
    return ends


def _open(url: str, *, dtype: np.dtype[Any] | None, options: StorageOptions) -> list[TokenFile]:
    name = base_name(url)
    if name == _LITDATA:
        return open_litdata(url, dtype, options)
    try:
        file = open_file(url, options=options)
        stat = file.stat()
    except MissingShardError as error:
        prefixed = f"{url}.bin"
        if is_local(url) and os.path.isfile(local_path(prefixed)):  # noqa: PTH113 - keeps './'
            raise MissingShardError(
                f"no such file: with a prefix of Megatron's, name its tokens, {prefixed!r}", url=url
            ) from error
        raise
    if name.endswith(".npy"):
        return [open_npy(file, stat, dtype)]
    if not name.endswith(".bin"):
        raise DataError(
            "no file of tokens by its name: .bin (of Megatron the .bin beside the .idx), "
            ".npy, or LitData's index.json",
            url=url,
        )
    indexed = open_megatron(url, stat, dtype, options)
    if indexed is not None:
        return [indexed]
    if dtype is None and name.startswith("chunk-"):
        beside = f"{url[: -len(name)]}{_LITDATA}"
        try:
            open_file(beside, options=options).stat()
        except MissingShardError:
            pass
        else:
            raise DataError(f"a chunk of LitData: name its index, {beside!r}", url=url)
    return [open_raw(file, stat, dtype)]
