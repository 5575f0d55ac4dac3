"""Lists of speech as rows of files: manifests of NeMo, cuts of lhotse, and directories of Kaldi.

Formats: https://docs.nvidia.com/nemo-framework (ASR data), https://lhotse.readthedocs.io (cuts),
https://kaldi-asr.org/doc/data_prep.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardwise.base.errors import DataError, MissingShardError

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
    found = {"path": sources[0].get("source"), "id": row.get("id"), "offset": row.get("start"),
             "duration": row.get("duration")}  # fmt: skip
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
