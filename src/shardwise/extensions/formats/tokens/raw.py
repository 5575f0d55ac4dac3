"""Files of nothing but tokens: raw ones, those of llm.c with a header, and `.npy`.

A raw file does not describe itself: its dtype must be given. A file that starts as one of another
format is refused. llm.c's have 256 int32 before the tokens: a magic number for the dtype, a version
(1 of GPT-2's tokens, 7 of Llama 3's) and the number of tokens. Of `.npy` the header is read by
numpy; Python objects, which would be unpickled, are refused.
"""

from __future__ import annotations

import io
import tokenize
from typing import Any

import numpy as np
from numpy.lib import format as npy

from shardwise.base.errors import DataError
from shardwise.extensions.formats.tokens.token_file import TokenFile, require_dtype, tokens_between
from shardwise.storage import File, FileStat
from shardwise.storage.known_formats import HEAD_BYTES, known_format

_LLMC_BYTES = 1024
_LLMC_DTYPES = {20240520: "<u2", 20240801: "<u4"}
_LLMC_VERSIONS = (1, 7)
# Its model weights, and its questions for an evaluation.
_LLMC_OTHERS = (20240326, 20240522)
_NPY_MAGIC = b"\x93NUMPY"
# The header of one dimension has 80 to 128 bytes.
_MAX_NPY_HEADER = 4096
# Errors of numpy for a header that is not a literal of Python.
_BAD_HEADERS = (
    ValueError, EOFError, SyntaxError, TypeError, LookupError, tokenize.TokenError,
)  # fmt: skip


def open_raw(file: File, stat: FileStat, dtype: np.dtype[Any] | None) -> TokenFile:
    """A file without an index."""
    url, head = file.url, file.read(0, min(stat.num_bytes, _LLMC_BYTES))
    _refuse_other_formats(url, head, stat, dtype)
    if len(head) == _LLMC_BYTES:
        magic, version, count = np.frombuffer(head, "<i4", 3).tolist()
        if magic in _LLMC_OTHERS:
            raise DataError("weights or an evaluation of llm.c, not its tokens", url=url, offset=0)
        if magic in _LLMC_DTYPES:
            if version not in _LLMC_VERSIONS:
                raise DataError(
                    f"a file of llm.c of version {version}: versions 1 and 7 are read",
                    url=url,
                    offset=4,
                )
            return _open_llmc(url, stat, np.dtype(_LLMC_DTYPES[magic]), count, dtype)
    if dtype is None:
        raise DataError(
            "nothing says what its tokens are: there is no .idx of Megatron and no index.json of "
            "LitData beside it; give dtype='uint16' for a raw file, as nanoGPT writes it",
            url=url,
        )
    return TokenFile(url, stat, dtype, 0, tokens_between(url, 0, stat.num_bytes, dtype))


def _refuse_other_formats(
    url: str, head: bytes, stat: FileStat, dtype: np.dtype[Any] | None
) -> None:
    # Bytes of text are tokens of one byte each, if such a dtype is given.
    may_be_text = dtype is not None and dtype.itemsize == 1
    found = known_format(head, num_bytes=stat.num_bytes, may_be_text=may_be_text)
    if found is not None:
        raise DataError(f"no file of raw tokens, but {found}", url=url, offset=0)


def _open_llmc(
    url: str, stat: FileStat, own: np.dtype[Any], count: int, dtype: np.dtype[Any] | None
) -> TokenFile:
    require_dtype(url, dtype, own, "llm.c's header")
    end = _LLMC_BYTES + count * own.itemsize
    if end != stat.num_bytes:
        raise DataError(
            f"the header says {count} tokens, which end at byte {end}, and the file has "
            f"{stat.num_bytes}: it is cut or damaged",
            url=url,
            offset=min(end, stat.num_bytes) if count >= 0 else 8,
        )
    return TokenFile(url, stat, own, _LLMC_BYTES, count)


def open_npy(file: File, stat: FileStat, dtype: np.dtype[Any] | None) -> TokenFile:
    """An array of one dimension; a raw file of that name, as OLMo has them, needs a dtype."""
    url, head = file.url, file.read(0, min(stat.num_bytes, _MAX_NPY_HEADER))
    if not head.startswith(_NPY_MAGIC):
        _refuse_other_formats(url, head[:HEAD_BYTES], stat, dtype)
        if dtype is not None:
            return open_raw(file, stat, dtype)
        raise DataError(
            "no .npy: it does not begin with \\x93NUMPY; if it has nothing but tokens, give dtype=",
            url=url,
            offset=0,
        )
    stream = io.BytesIO(head)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, own = read(stream, max_header_size=_MAX_NPY_HEADER)
    except _BAD_HEADERS as error:
        raise DataError(f"a damaged header of .npy: {error}", url=url, offset=6) from None
    if own.kind not in "iu" or len(shape) != 1 or own.byteorder == ">":
        raise DataError(
            f"an array of {own} and shape {list(shape)}: tokens are one row of whole numbers, "
            "little-endian",
            url=url,
            offset=stream.tell(),
        )
    require_dtype(url, dtype, own, "the header")
    offset = stream.tell()
    end = offset + shape[0] * own.itemsize
    if end != stat.num_bytes:
        raise DataError(
            f"{shape[0]} tokens end at byte {end}, and the file has {stat.num_bytes}: it is cut or "
            "damaged",
            url=url,
            offset=min(end, stat.num_bytes),
        )
    return TokenFile(url, stat, own, offset, shape[0])
