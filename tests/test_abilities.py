"""Optional abilities are found by their members, on every version of Python alike."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from shardwise.base.abilities import having


class Counts(Protocol):
    unit: str

    @property
    def total(self) -> int:
        """All of them."""

    def count(self) -> int:
        """Count."""


class Whole:
    unit = "rows"

    @property
    def total(self) -> int:
        raise AssertionError("a look for abilities must not compute anything")

    def count(self) -> int:
        return 3


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_object_with_all_members_has_the_ability_and_no_property_is_called() -> None:
    whole = Whole()
    assert having(whole, Counts) is whole


def test_members_that_getattr_finds_count() -> None:
    class Plain:
        unit, total = "rows", 3

        def count(self) -> int:
            return 3

    wrapper = Wrapper(Plain())
    assert having(wrapper, Counts) is wrapper


@pytest.mark.parametrize("name", ["unit", "total", "count"])
def test_a_member_that_is_missing_or_none_is_no_ability(name: str) -> None:
    assert having(type("Blocked", (Whole,), {name: None})(), Counts) is None
    members = {"unit": "rows", "total": 3, "count": lambda _: 3}
    del members[name]
    assert having(type("Without", (), members)(), Counts) is None
