"""No test depends on chance: what can be seen of that in the tests' own text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
# Generators that give other values in each run, where they are called without a seed.
_SEEDED = {"Random", "default_rng", "RandomState"}
_UNSEEDED = {"urandom", "token_bytes", "token_hex", "uuid1", "uuid4", "SystemRandom"}


def chances(text: str) -> Iterator[str]:
    """What a test leaves to chance: the lines with unseeded values, and short bytes not in data."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            has_no_seed = name in _SEEDED and not node.args and not node.keywords
            if name in _UNSEEDED or has_no_seed:
                yield f"line {node.lineno}: {name} gives other values in each run: seed it"
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn):
            sought = getattr(node.left, "value", None)
            # A digest of 16 bytes holds two given ones once in 4,000 runs; texts have no controls.
            if isinstance(sought, bytes) and len(sought) < 4 and not sought < b" ":
                yield f"line {node.lineno}: {sought!r} may be in any digest: seek a longer one"


@pytest.mark.parametrize(
    "text",
    [
        "data = os.urandom(3)", "rng = np.random.default_rng()", "name = uuid4()",
        "assert b'@' not in data",
    ],
)  # fmt: skip
def test_what_depends_on_chance_is_found(text: str) -> None:
    assert list(chances(text))


def test_programs_with_a_process_group_end_it() -> None:
    """torch aborts a process that ends while its group's thread frees the last collective."""
    programs = [
        each
        for name in ("tests", "examples", "benchmarks")
        for each in (ROOT.parent / name).rglob("*.py")
    ]
    texts = {str(path.relative_to(ROOT.parent)): path.read_text() for path in programs}
    ends = ("destroy_process_group(", "os._exit(")
    assert not [
        name
        for name, text in texts.items()
        if "init_process_group(" in text and not any(end in text for end in ends)
    ]


def test_no_test_has_unseeded_values_or_seeks_a_few_bytes_in_data() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted(ROOT.rglob("*.py"))
        if (lines := list(chances(path.read_text())))
    }
    assert not found
