"""Brace patterns: `{000..123}`, `{0..10..2}`, `{a..c}`, `{a,b}`, nested, as a shell expands them.

Pure text: no file is looked up. The expansion is bracex's; patterns that name no files
are refused here.
"""

from __future__ import annotations

import re

from shardwise.base.shown import shown

# A guard against {0..999999999999}: more names than any dataset has shards.
MAX_NAMES = 10_000_000
_MAX_DEPTH = 50
# Escaped characters, and what stands for itself or opens and closes a group.
_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
_STEP_0 = re.compile(r"\{[^{},.]+\.\.[^{},.]+\.\.-?0+}")
# Beyond 64 bits bracex takes a range for a text.
_ENDLESS = re.compile(r"\{-?\d+\.\.-?\d{19,}")


def expand_braces(text: str) -> list[str]:
    r"""Expand a brace pattern into names, in the order that they are written.

    A number range keeps zero padding (`{08..10}` is 08, 09, 10), may count down and may have a
    step. Braces without a comma and a range, such as `{x}`, stay as they are, and so do escaped
    ones, `\{a,b\}`, without their backslashes.

    >>> expand_braces("part-{08..10}.tar")
    ['part-08.tar', 'part-09.tar', 'part-10.tar']
    >>> expand_braces("{train,val-{a..c}}.tar")
    ['train.tar', 'val-a.tar', 'val-b.tar', 'val-c.tar']
    """
    if "{" not in text and "}" not in text:
        return [text]
    import bracex

    problem = _problem(text)
    if problem is None:
        try:
            return bracex.expand(text, limit=MAX_NAMES, return_empty=True)
        except (bracex.ExpansionLimitException, RecursionError):
            problem = f"more than {MAX_NAMES:,} names"
    raise ValueError(f"{problem} in the pattern {shown(text)!r:.200}")


def _problem(text: str) -> str | None:
    depth = 0
    for brace in _TOKEN.findall(text):
        depth += (brace == "{") - (brace == "}")
        if depth < 0:
            return "unbalanced '}'"
        if depth > _MAX_DEPTH:
            return f"braces are more than {_MAX_DEPTH} deep"
    if depth:
        return "unbalanced '{'"
    if _STEP_0.search(text):
        return "the step of a range is 0"
    return f"more than {MAX_NAMES:,} names" if _ENDLESS.search(text) else None
