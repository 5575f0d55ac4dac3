"""A list of files and what belongs to them: CSV with a header, JSONL, or a list of speech.

Formats: RFC 4180 (https://www.rfc-editor.org/rfc/rfc4180), https://jsonlines.org; manifests of
NeMo: https://docs.nvidia.com/nemo-framework (ASR data); cuts of lhotse:
https://lhotse.readthedocs.io; directories of Kaldi: https://kaldi-asr.org/doc/data_prep.html
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import posixpath
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardwise.base.columns import Column
from shardwise.base.errors import DataError, MissingShardError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.shown import base_name, without_query
from shardwise.sources.files.folder import Listing, Names, field_of, runs_of
from shardwise.storage import StorageOptions, read_whole
from shardwise.storage.found_once import found_once

# Files beside `wav.scp` with one value per utterance, and what the values are called.
_BESIDE = {"text": "text", "utt2spk": "speaker", "utt2lang": "language"}


def flat_row(row: dict[str, Any], number: int, url: str) -> dict[str, Any]:
    """Flatten a row of JSONL: a cut of lhotse becomes its path, id, offset, duration and text.

    >>> cut = {"id": "a-1", "start": 2.5, "duration": 1.5, "channel": 0, "supervisions":
    ...        [{"text": "yes", "speaker": "x"}],
    ...        "recording": {"sources": [{"type": "file", "source": "a.flac"}]}}
    >>> flat_row(cut, 0, "cuts.jsonl")
    {'path': 'a.flac', 'id': 'a-1', 'offset': 2.5, 'duration': 1.5, 'text': 'yes', 'speaker': 'x'}
    """
    if row.get("type") == "MixedCut":
        raise DataError(f"row {number} is a mixed cut of lhotse: mix sounds in a map()", url=url)
    recording, said = row.get("recording"), row.get("supervisions")
    if not isinstance(recording, Mapping) or not isinstance(said, list):
        return row
    sources = recording.get("sources") or [{}]
    if len(sources) > 1 or sources[0].get("type", "file") not in ("file", "url"):
        raise DataError(f"row {number} has a recording that is not one file", url=url, index=number)
    if recording.get("transforms"):
        raise DataError(f"row {number} has a recording to be changed by lhotse: save its sound "
                        "changed, or change it in a map()", url=url, index=number)  # fmt: skip
    found = {"path": sources[0].get("source"), "id": row.get("id"), "offset": row.get("start"),
             "duration": row.get("duration")}  # fmt: skip
    if len(sources[0].get("channels") or ()) > 1:
        found["channel"] = row.get("channel")
    for name in ("text", "speaker", "language"):
        values = [each.get(name) for each in said if each.get(name) is not None]
        if values:
            found[name] = " ".join(map(str, values)) if name == "text" else values[0]
    return found


def kaldi_rows(url: str, read: Callable[[str], bytes]) -> list[dict[str, Any]]:
    """The utterances of `wav.scp`, and of `segments` where that lies beside it."""
    directory = url[: len(url) - len("wav.scp")]
    paths = _pairs(url, read(url))
    for recording, path in paths.items():
        if path.endswith("|"):
            raise DataError(
                f"{recording!r} is the command {path!r:.60}: commands are not run; write its "
                "output to a file",
                url=url,
            )
    segments = _pairs_beside(directory + "segments", read)
    rows: dict[str, dict[str, Any]] = {}
    for utterance, words in (segments or {name: name for name in paths}).items():
        recording, *times = words.split()
        try:
            row: dict[str, Any] = {"path": paths[recording], "id": utterance}
            if segments:
                begin, end = map(float, times)
                row |= {"offset": begin, "duration": round(end - begin, 6)}
        except (KeyError, ValueError):
            raise DataError(
                f"{utterance!r} must have a recording of wav.scp, a begin and an end, and has "
                f"{words!r:.60}",
                url=directory + "segments",
            ) from None
        rows[utterance] = row
    for file, name in _BESIDE.items():
        for utterance, value in _pairs_beside(directory + file, read).items():
            if utterance in rows:
                rows[utterance][name] = value
    return list(rows.values())


def _pairs_beside(url: str, read: Callable[[str], bytes]) -> dict[str, str]:
    try:
        return _pairs(url, read(url))
    except MissingShardError:
        return {}


def _pairs(url: str, data: bytes) -> dict[str, str]:
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"it is no UTF-8: {error}", url=url, offset=error.start) from error
    split = [line.split(maxsplit=1) for line in lines if line.strip()]
    return {words[0]: words[1].strip() if len(words) > 1 else "" for words in split}


SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".jsonl.gz", ".ndjson", "wav.scp")
# Names of the column of paths, unless path= names it.
_PATH_COLUMNS = ("path", "file_name", "filename", "file", "audio_filepath")
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def read_list(
    url: str,
    *,
    root: str | None = None,
    path: str | None = None,
    suffixes: Collection[str] | None = None,
    field: str | None = None,
    storage: StorageOptions | None = None,
) -> Listing:
    """Read a list of files; the arguments are those of `shardwise.files`.

    In CSV a column whose values are all whole numbers is int64, all numbers float64, else str, and
    an empty value is missing. In JSONL the values are as they are, numbers of one type in an array.
    Rows with other suffixes than those named are an error.
    """
    base = _directory(url) if root is None else root
    opened_ns = found_once(f"opened {url}", [base], storage, time.time_ns)
    read = partial(read_whole, options=storage, once=True)
    if base_name(url) == "wav.scp":
        rows = kaldi_rows(url, read)
    else:
        rows = [flat_row(row, number, url) for number, row in enumerate(_read_rows(url, read(url)))]
    if not rows:
        raise DataError("it lists no files", url=url)
    columns = _columns(rows, text=base_name(url).endswith((".csv", ".tsv")))
    chosen = _path_column(columns, path, url)
    paths = columns.pop(chosen)
    values = paths.tolist() if isinstance(paths, np.ndarray) else paths
    names = [_name(value, base, url, row) for row, value in enumerate(values)]
    endings = sorted({posixpath.splitext(name)[1] for name in names})
    if suffixes is not None:
        lowered = {suffix.lower() for suffix in suffixes}
        other = next((suffix for suffix in endings if suffix.lower() not in lowered), None)
        if other is not None:
            raise DataError(f"it lists files that end in {other!r}, not in {suffixes}", url=url)
    data_field = field or field_of(endings, url=url)
    if data_field in columns:
        raise DataError(
            f"it has a column {data_field!r}, as the field of the files' bytes would be called: "
            "name another one by field=",
            url=url,
            field=data_field,
        )
    stem = base_name(url)
    runs = [(f"{stem}:{start}", stop - start) for start, stop in runs_of(len(names))]
    return Listing(base, Names(names), data_field, columns, runs, opened_ns=opened_ns)


def lists_files(row: Mapping[str, Any]) -> bool:
    """Whether a line of JSON belongs to a list of files, rather than being a sample itself."""
    return any(name in row for name in (*_PATH_COLUMNS, "recording"))


def _directory(url: str) -> str:
    head, _, _ = without_query(url).rpartition("/")
    return head or ("/" if url.startswith("/") else ".")


def _read_rows(url: str, data: bytes) -> list[dict[str, Any]]:
    name = base_name(url)
    if name.endswith(".gz"):
        with as_data_error("it can't be unpacked", url=url):
            data = gzip.decompress(data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"it is no UTF-8: {error}", url=url, offset=error.start) from error
    if name.endswith((".csv", ".tsv")):
        return _read_csv(url, text, "\t" if name.endswith(".tsv") else ",")
    rows = []
    # Split at line feeds alone: U+2028 and others may stand in a string.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except RecursionError:
            raise DataError(f"line {number} is nested too deep", url=url) from None
        except ValueError as error:
            raise DataError(f"line {number} is no JSON: {error}", url=url) from error
        if not isinstance(row, dict):
            raise DataError(f"line {number} is no JSON object, but {line[:40]!r}", url=url)
        rows.append(row)
    return rows


def _read_csv(url: str, text: str, delimiter: str) -> list[dict[str, Any]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    try:
        names = next(reader, [])
        if len(set(names)) < len(names) or not all(names):
            raise DataError(
                f"its first line must name the columns, each once, and is {names}", url=url
            )
        for values in reader:
            if values and len(values) != len(names):
                raise DataError(
                    f"line {reader.line_num} has {len(values)} values for {len(names)} columns",
                    url=url,
                )
            if values:
                rows.append(dict(zip(names, values, strict=True)))
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} is no CSV: {error}", url=url) from error
    return rows


def _columns(rows: Sequence[Mapping[str, Any]], *, text: bool) -> dict[str, Column]:
    names = dict.fromkeys(name for row in rows for name in row)
    convert = _typed_text if text else _convert_values
    return {name: convert([row.get(name) for row in rows]) for name in names}


def _typed_text(values: list[Any]) -> Column:
    texts = [value for value in values if value]
    convert: Any = str
    if texts and all(map(_WHOLE.fullmatch, texts)):
        convert = int
    elif texts and all(map(_is_number, texts)):
        convert = float
    return _convert_values([convert(value) if value else None for value in values])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _convert_values(values: list[Any]) -> Column:
    kinds = set(map(type, values))
    if kinds in ({bool}, {float}):
        return np.array(values)
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return np.array(values, dtype=np.int64)
    return values


def _path_column(columns: Mapping[str, Column], path: str | None, url: str) -> str:
    chosen = path or next((name for name in _PATH_COLUMNS if name in columns), None)
    if chosen is None or chosen not in columns:
        lack = f"no column {path!r}" if path else f"none of the columns {', '.join(_PATH_COLUMNS)}"
        there = ", ".join(map(repr, columns)) or "none"
        raise DataError(
            f"{lack} with the files' paths: the columns are {there}; name one by path=, or open "
            "the lines themselves by sw.jsonl",
            url=url,
        )
    return chosen


def _name(value: Any, base: str, url: str, row: int) -> str:
    """A path relative to the base; one that leaves it is refused."""
    if not isinstance(value, str) or not value:
        raise DataError(f"row {row} has no path, but {value!r:.80}", url=url, index=row)
    fault = "holds a NUL" if "\0" in value else ""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        fault = "holds a lone surrogate"
    if fault:
        raise DataError(
            f"row {row} has the path {value!r:.80}, which {fault}: no file has such a name",
            url=url,
            index=row,
        )
    # An absolute URL that lies below the base is one relative to it.
    inside_url = base.rstrip("/") + "/" if _SCHEME.match(base) else None
    name = value.removeprefix(inside_url) if inside_url else value
    if os.path.isabs(name):  # noqa: PTH117
        inside = os.path.abspath(base).rstrip("/") + "/"  # noqa: PTH100
        name = posixpath.normpath(name).removeprefix(inside)
    name = posixpath.normpath(name)
    if name.startswith(("/", "../")) or name in ("..", ".") or _SCHEME.match(name):
        raise DataError(
            f"row {row} names {value!r}, which does not lie in {base!r}: name the directory that "
            "the paths may lie in by root=",
            url=url,
            index=row,
        )
    return name
