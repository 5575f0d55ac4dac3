"""The digest of code: the same in every process, another one for other code that is reached."""

from __future__ import annotations

import functools
import multiprocessing
import re
import sys
import textwrap
import threading
from array import array
from collections import deque
from datetime import date
from decimal import Decimal
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.dataset.code_digest import code_digest, held_digest
from tests.support.python_code import printed_by

HELPERS = """
import enum, functools
SIZE, MEAN = 224, (0.5, 0.25)
CACHE, calls = {}, 0

class Mode(enum.Enum):
    FAST = 1

def scale(x):
    return x * 2

@functools.cache
def table(n):
    return n + 10

class Base:
    def prepare(self, x):
        return x + 3

class Crop(Base):
    margin = 4
    def __init__(self, size):
        self.size = size
    def __call__(self, x):
        return self.area + self.prepare(x)
    @functools.cached_property
    def area(self):
        return self.size * 6
    @staticmethod
    def flipped(x):
        return -x - 7

def unrelated(x):
    return x * 8
"""
RECIPE = """
import json
import helpers
from helpers import Crop, scale as first, table
STEPS = (helpers.Base().prepare, first)

def counted(x):
    global calls
    calls = x
    return calls

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def run(x):
    helpers.CACHE[x] = [first(y) for y in range(x)]
    size = helpers.SIZE + helpers.MEAN[0] + (helpers.Mode.FAST is x)
    return size + table(x) + Crop(size)(x) + counted(x) + even(x), json.dumps(x)
"""


def modules(**texts: str) -> ModuleType:
    """Modules made of texts; the last one, which may import the others."""
    made, before = {}, {name: sys.modules.get(name) for name in texts}
    try:
        for name, text in texts.items():
            made[name] = sys.modules[name] = ModuleType(name)
            exec(textwrap.dedent(text), vars(made[name]))
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
    return made[name]


def digest(helpers: str = HELPERS, recipe: str = RECIPE) -> str:
    return code_digest(modules(helpers=helpers, recipe=recipe).run)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x * 2", "x * 3"), ("n + 10", "n + 11"), ("x + 3", "x + 4"), ("margin = 4", "margin = 5"),
        ("self.size * 6", "self.size * 5"), ("-x - 7", "-x - 8"), ("= 224", "= 256"),
        ("0.25", "0.5"), ("FAST = 1", "FAST = 2"), ("Crop(Base)", "Crop(Mode.__class__)"),
    ],
)  # fmt: skip
def test_a_change_of_what_is_called_changes_it(before: str, after: str) -> None:
    changed = HELPERS.replace(before, after)
    assert changed != HELPERS
    assert digest(changed) != digest()


@pytest.mark.parametrize(
    ("before", "after"),
    [("x * 8", "x * 9"), ("import enum", "# other lines\n\nimport enum"), ("{}, 0", "{1: 2}, 5")],
)
def test_what_is_not_called_and_what_may_be_a_cache_do_not(before: str, after: str) -> None:
    changed = HELPERS.replace(before, after)
    assert changed != HELPERS
    assert digest(changed) == digest()


def test_what_is_kept_goes_by_code_and_held_values_and_not_by_what_is_called() -> None:
    def held(text: str) -> str:
        return held_digest(modules(recipe=text).f)

    assert held("def f(x): return x in {'a', 'b'}") == held("\n\ndef f(x): return x in {'b', 'a'}")
    for one, two in (
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return len(x)", "def f(x): return max(x)"),
        ("def f(x, y=1): return y", "def f(x, y=2): return y"),
        ("f = lambda x: (lambda: 1)()", "f = lambda x: (lambda: 2)()"),
    ):
        assert held(one) != held(two)
    recipe = modules(helpers=HELPERS, recipe=RECIPE)
    other = modules(helpers=HELPERS.replace("x * 2", "x * 3"), recipe=RECIPE)
    changed = modules(helpers=HELPERS.replace("self.area + self", "self"), recipe=RECIPE)
    assert held_digest(recipe.run) == held_digest(other.run)
    assert held_digest(recipe.Crop(3)) == held_digest(other.Crop(3))
    assert held_digest(recipe.Crop(3)) != held_digest(changed.Crop(3))
    assert held_digest(recipe.Crop(3)) != held_digest(recipe.Crop(4))


def test_names_that_stand_for_others_change_it() -> None:
    other = RECIPE.replace("scale as first", "unrelated as first")
    assert digest(recipe=other) != digest()
    assert digest(recipe=RECIPE.replace("n != 0 and", "n > 0 and")) != digest()


def test_a_program_and_a_server_that_imports_it_have_the_same() -> None:
    program, module = (modules(**{name: HELPERS}) for name in ("__main__", "imported"))
    for name in ("scale", "table"):
        assert code_digest(vars(program)[name]) == code_digest(vars(module)[name])
    assert code_digest(program.Crop(3)) == code_digest(module.Crop(3))
    assert code_digest(program.Crop(3)) != code_digest(module.Crop(4))


def test_running_the_code_does_not_change_it() -> None:
    module = modules(helpers=HELPERS.replace("Mode.FAST is x", "0"), recipe=RECIPE)
    before = code_digest(module.run)
    module.run(3)
    assert module.helpers.CACHE
    assert code_digest(module.run) == before


class Cached:
    """Has a lock, and a cache that it fills."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock, self.seen = threading.Lock(), dict[int, int]()

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size}

    def __call__(self, sample: int) -> int:
        with self.lock:
            return self.seen.setdefault(sample, self.size * sample + self.doubled)

    @functools.cached_property
    def doubled(self) -> int:
        return 2 * self.size


class Stateful(Cached):
    """Keeps all but the lock."""

    __getstate__ = object.__getstate__


def test_a_cache_that_was_filled_does_not_change_it() -> None:
    cached, stateful = Cached(3), Stateful(3)
    stateful.lock, stateful.seen = None, {}  # type: ignore[assignment]
    before = code_digest([cached, stateful.doubled and 0, functools.cache(np.sum)])
    cached(5)
    assert code_digest([cached, 0, functools.cache(np.sum)]) == before
    plain = code_digest(stateful)
    assert "doubled" in vars(stateful)
    del stateful.doubled
    assert code_digest(stateful) == plain
    assert code_digest(Cached(4)) != code_digest(Cached(3))


class Closed:
    """Has no state any more, as a picture whose file is closed."""

    def __getstate__(self) -> Any:
        raise ValueError("operation on a closed file")


def test_generators_locks_and_files_count_by_their_type(tmp_path: Any) -> None:
    for make in (Closed, multiprocessing.Lock, multiprocessing.Queue):
        assert code_digest([make()]) == code_digest([make()])
    one, two = np.random.default_rng(1), np.random.default_rng(2)
    assert code_digest(one) == code_digest(two)
    with (tmp_path / "x").open("w") as first, (tmp_path / "y").open("w") as second:
        assert code_digest(first) == code_digest(second)


class Slotted:
    """Has no `__dict__`."""

    __slots__ = ("size", "unset")

    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
        (re.compile("a"), re.compile("a", re.IGNORECASE)), (Path("a"), Path("b")),
        (range(3), range(4)), (slice(3), slice(4)), (deque([1]), deque([2])),
        (bytearray(b"a"), bytearray(b"b")), (array("i", [1]), array("i", [2])),
        (Slotted(1), Slotted(2)), (itemgetter(1), itemgetter(2)),
        (ZoneInfo("UTC"), ZoneInfo("Etc/GMT+1")),
        (date(2020, 1, 1), date(2020, 1, 2)), (Decimal(1), Decimal(2)), (Fraction(1), Fraction(2)),
        (np.arange(6)[::2], np.arange(6)[1::2]), (np.array(1.0), np.array(2.0)),
        (len, max), (str.upper, str.lower), ({"a": 1}.get, {"a": 2}.get),
        (np.random.default_rng(0).random, np.random.default_rng(0).integers),
    ],
)  # fmt: skip
def test_values_that_functions_hold_change_it(one: Any, two: Any) -> None:
    for digest_of in (code_digest, held_digest):
        assert digest_of(functools.partial(max, one)) != digest_of(functools.partial(max, two))
        assert digest_of(one) == digest_of(one)


def test_tensors_and_weights_count_with_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    mean = torch.tensor([0.5, 0.25], dtype=torch.bfloat16)
    assert code_digest(mean) == code_digest(mean.clone())
    assert code_digest(mean) != code_digest(mean + 1)
    assert code_digest(mean) != code_digest(mean.reshape(2, 1))
    assert code_digest(torch.float16) != code_digest(mean.dtype)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    before = code_digest(model)
    with torch.no_grad():
        model[0].weight[1, 2] += 1
    assert code_digest(model) != before
    assert code_digest(mean.to_sparse()) == code_digest(mean.to_sparse())


def test_a_pattern_or_tensor_that_code_reads_from_its_module_counts() -> None:
    pytest.importorskip("torch")
    text = "import re, torch\nA, B = re.compile('x'), torch.tensor([1, 2])\ndef run(): return A, B"
    assert code_digest(modules(m=text).run) == code_digest(modules(m=text).run)
    for change in (text.replace("'x'", "'y'"), text.replace("[1, 2]", "[1, 3]")):
        assert code_digest(modules(m=change).run) != code_digest(modules(m=text).run)


def test_a_variable_that_a_function_captured_and_assigns_does_not_count() -> None:
    def counting(scale: int) -> Any:
        calls = 0

        def scaled(x: int) -> int:
            nonlocal calls
            calls += 1
            return scale * x

        return scaled

    scaled = counting(2)
    before = code_digest(scaled)
    assert scaled(1) == 2
    assert code_digest(scaled) == before != code_digest(counting(3))


class Node:
    """Refers to all nodes, itself included."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.others: list[Node] = []


def linked(sizes: list[int]) -> Node:
    nodes = [Node(size) for size in sizes]
    for node in nodes:
        node.others = list(nodes)
    return nodes[0]


def test_objects_that_all_refer_to_one_another_take_no_time() -> None:
    """Twelve have 40 million ways from one to another."""
    sizes = list(range(12))
    assert code_digest(linked(sizes)) == code_digest(linked(sizes))
    assert code_digest(linked(sizes)) != code_digest(linked([*sizes[:-1], 99]))


def test_it_is_the_same_whether_equal_parts_are_one_object_or_several() -> None:
    one = [1, 2]
    assert code_digest([one, one]) == code_digest([[1, 2], [1, 2]])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 7).flatmap(
        lambda n: st.tuples(
            st.lists(st.sets(st.integers(0, n - 1)), min_size=n, max_size=n), st.integers(0, n - 1)
        )
    )
)
def test_it_changes_with_the_functions_that_are_reached_and_no_other(
    graph: tuple[list[set[int]], int],
) -> None:
    calls, changed = graph

    def program(constants: list[int]) -> str:
        return "\n".join(
            f"def f{n}(): return {constants[n]}, {', '.join(f'f{m}()' for m in sorted(calls[n]))}"
            for n in range(len(calls))
        )

    constants = [100 + n for n in range(len(calls))]
    before = code_digest(modules(graph=program(constants)).f0)
    assert code_digest(modules(graph=program(constants)).f0) == before
    constants[changed] = 7
    reached = {0}
    while more := {m for n in reached for m in calls[n]} - reached:
        reached |= more
    after = code_digest(modules(graph=program(constants)).f0)
    assert (after != before) == (changed in reached)


_PROGRAM = """
    import dataclasses, enum, sys
    from pathlib import Path
    import cloudpickle
    from shardwise.dataset.code_digest import code_digest

    class Mode(enum.Enum):
        SLOW, FAST = 1, 2

    NAMES = frozenset({"a", "b", "c", "d"})

    @dataclasses.dataclass(frozen=True, slots=True)
    class Point:
        x: int
        names: frozenset

    class Step:
        kinds = (Mode.FAST, "x")
        def __init__(self):
            self.names, self.point = set("efgh"), Point(1, NAMES)
        def __call__(self, sample):
            return helper(sample) in {"k", "l", "m"}, NAMES, super().__repr__

    def helper(sample, seen=frozenset("xyz")):
        return helper if sample else Mode.SLOW

    folder = Path(sys.argv[1])
    value = [Step(), helper, lambda sample: Step()(helper(sample))]
    (folder / "pickle").write_bytes(cloudpickle.dumps(value))
    print(code_digest(value))
"""


def test_it_is_the_same_in_other_processes_also_of_what_was_pickled(tmp_path: Any) -> None:
    found = {printed_by(_PROGRAM, tmp_path, env={"PYTHONHASHSEED": seed}) for seed in "12"}
    load = """
        import pickle, sys
        from pathlib import Path
        from shardwise.dataset.code_digest import code_digest
        print(code_digest(pickle.loads((Path(sys.argv[1]) / "pickle").read_bytes())))
    """
    found.add(printed_by(load, tmp_path, env={"PYTHONHASHSEED": "3"}))
    assert len(found) == 1
