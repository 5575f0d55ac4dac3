"""Which samples are selected, by their keys and their metadata."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Selection"]


@dataclass(frozen=True)
class Selection:
    """The conditions for a sample.

    Attributes:
        keys: what it must have.
        aesthetics: its json's "AESTHETIC_SCORE" must be this or more.
        languages: its text must be in one of these, by `langdetect`.
        unsafe: its json's "punsafe" must be below this.
    """

    keys: tuple[str, ...]
    aesthetics: float | None = None
    languages: tuple[str, ...] | None = None
    unsafe: float | None = None

    @property
    def asks_metadata(self) -> bool:
        """Whether decoded fields are asked for."""
        return not (self.aesthetics is None and self.languages is None and self.unsafe is None)

    def refuse(self, sample: Mapping[str, Any]) -> str | None:
        """Why a decoded sample is not selected; None if it is.

        Raises:
            KeyError: it lacks the entry that a condition asks for.
        """
        if self.aesthetics is not None and _entry(sample, "AESTHETIC_SCORE") < self.aesthetics:
            return "aesthetics"
        if self.languages is not None and _language(sample) not in self.languages:
            return "language"
        if self.unsafe is not None and _entry(sample, "punsafe") >= self.unsafe:
            return "unsafe"
        return None


def _entry(sample: Mapping[str, Any], name: str) -> float:
    metadata = sample.get("json")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(name), int | float):
        raise KeyError(
            f"the sample {sample.get('__key__')!r} of {sample.get('__url__')} has no number "
            f"{name!r} in its json field, which a threshold asks for"
        )
    return float(metadata[name])


def _language(sample: Mapping[str, Any]) -> str | None:
    """The likeliest language of the text; None where there is none to be seen."""
    langdetect: Any = importlib.import_module("langdetect")
    # It draws at random unless it is seeded: the same text must have the same language.
    langdetect.DetectorFactory.seed = 0
    try:
        found = langdetect.detect_langs(sample["txt"])
    except langdetect.LangDetectException:
        return None
    return str(max(found, key=lambda each: each.prob).lang)
