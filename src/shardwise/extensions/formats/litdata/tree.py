"""The tree of a LitData sample: which leaves make which field.

Source: the JSON form of torch's `TreeSpec`, version 1, which LitData keeps as `data_spec`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DICTS = ("builtins.dict", "collections.OrderedDict")
_SEQUENCES = ("builtins.list", "builtins.tuple")
# Deeper trees are damage, or an attack on the stack.
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Node:
    """A part of a sample."""

    leaves: range
    kind: str = ""
    children: tuple[Node, ...] = ()
    names: tuple[str, ...] | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether it is one value by itself."""
        return not self.kind

    def value(self, leaves: Mapping[int, Any]) -> Any:
        """Its value, from those of its leaves."""
        if not self.kind:
            return leaves[self.leaves.start]
        values = [child.value(leaves) for child in self.children]
        if self.names is not None:
            return dict(zip(self.names, values, strict=True))
        return tuple(values) if self.kind == "builtins.tuple" else values

    def flatten(self, value: Any) -> list[Any]:
        """The values of its leaves; ValueError for a value of another form."""
        if not self.kind:
            return [value]
        parts = list(value)
        if self.names is not None:
            parts = [value[name] for name in self.names]
        if len(parts) != len(self.children):
            raise ValueError(f"{len(parts)} values where {len(self.children)} were")
        pairs = zip(self.children, parts, strict=True)
        return [leaf for child, part in pairs for leaf in child.flatten(part)]


def parse(spec: str, num_leaves: int) -> Node:
    """The tree of a `data_spec`."""
    try:
        version, tree = json.loads(spec)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"data_spec is no tree: {error}") from error
    if version != 1:
        raise ValueError(f"data_spec is of version {version!r:.40}, and 1 is read")
    node, end = _parse(tree, 0, 0)
    if end != num_leaves:
        raise ValueError(f"data_spec has {end} leaves, and data_format {num_leaves}")
    return node


def fields_of(node: Node) -> dict[str, Node]:
    """The fields of a sample: a dict's by name, a list's by number; "value" for all else."""
    if node.is_leaf:
        return {"value": node}
    names = node.names or [str(number) for number in range(len(node.children))]
    return dict(zip(names, node.children, strict=True))


def _parse(tree: Any, leaf: int, depth: int) -> tuple[Node, int]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"data_spec is deeper than {_MAX_DEPTH}")
    if not isinstance(tree, dict) or not isinstance(tree.get("children_spec"), list):
        raise ValueError(f"data_spec has {tree!r:.80}, which is no node")  # noqa: TRY004
    kind = tree.get("type")
    if kind is None:
        return Node(range(leaf, leaf + 1)), leaf + 1
    children, at = [], leaf
    for each in tree["children_spec"]:
        child, at = _parse(each, at, depth + 1)
        children.append(child)
    leaves = range(leaf, at)
    if kind in _SEQUENCES:
        return Node(leaves, kind, tuple(children)), at
    if kind not in _DICTS:
        raise ValueError(f"data_spec has a {kind!r:.80}; dicts, lists and tuples are read")
    names = json.loads(tree.get("context") or "null")
    if (
        not isinstance(names, list)
        or len(names) != len(children)
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(f"data_spec has a dict of {names!r:.80}: its keys must be texts")
    if len(set(names)) < len(names):
        raise ValueError(f"data_spec names a key twice: {names!r:.80}")
    return Node(leaves, kind, tuple(children), tuple(names)), at
