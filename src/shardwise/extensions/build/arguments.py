"""The arguments of a build: the pattern, the sizes and the choices."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable
from typing import Any

from shardwise.base.arguments import check_choice, check_function
from shardwise.base.shown import shown
from shardwise.extensions.build.inputs import Input
from shardwise.plan.arguments import whole
from shardwise.storage import is_local, local_path

_SUFFIXES = (".tar", ".parquet")
# The default size of shards: large reads, and little to lose by a kill.
_DEFAULT_BYTES, _DEFAULT_SAMPLES = 256 << 20, 1000


def inputs_per_shard(inputs: Input, samples: int | None, num_bytes: int | None) -> int:
    """Inputs per shard, by the user's arguments."""
    if samples is not None and num_bytes is not None:
        raise ValueError("samples_per_shard and bytes_per_shard: give one of them")
    if samples is not None:
        return whole("samples_per_shard", samples, least=1)
    mean = inputs.mean_bytes()
    if num_bytes is not None:
        whole("bytes_per_shard", num_bytes, least=1)
        if not mean:
            raise ValueError(
                f"bytes_per_shard={num_bytes}: the sizes of these inputs are not known before "
                "they are made; give samples_per_shard"
            )
    if not mean:
        return _DEFAULT_SAMPLES
    return max(1, int((num_bytes or _DEFAULT_BYTES) / mean))


def split_pattern(pattern: str) -> tuple[str, str, str]:
    """A pattern's directory, name and suffix."""
    text = local_path(pattern) if is_local(pattern) else pattern
    root, slash, name = text.rpartition("/")
    suffix = next((each for each in _SUFFIXES if name.endswith(each)), None)
    if suffix is None:
        raise ValueError(f"the pattern {shown(pattern)!r} must end in '.tar' or '.parquet'")
    try:
        braces = [each for _, each, _, _ in string.Formatter().parse(name) if each is not None]
        names = {name.format(shard=number) for number in (0, 1)} if braces == ["shard"] else set()
    except (ValueError, LookupError, AttributeError, MemoryError):
        names = set()
    if len(names) < 2 or "{" in root:
        raise ValueError(
            f"the pattern {shown(pattern)!r} must have the shard's number in its name, and no "
            "other braces: such as 'out/{shard:06d}.tar'"
        )
    return root or ("/" if slash else "."), name, suffix


def check_place(root: str, suffix: str, urls: Iterable[str]) -> None:
    """Refuse shards among those that they are made of: who opens the directory would read both."""
    folders = {url.rpartition("/")[0] for url in urls if url.endswith(suffix)}
    if _real(root) in map(_real, folders):
        raise ValueError(
            f"the output is to lie in {shown(root)!r}, where shards of the input lie: who opens "
            "that directory would read each sample twice; give another directory"
        )


def _real(root: str) -> str:
    return os.path.realpath(root) if is_local(root) else root.rstrip("/")


def check_arguments(
    suffix: str, order: Any, on_error: Any, map_: Any, filter_: Any, *, media: bool
) -> None:
    """Refuse arguments that are not among the choices, or not functions."""
    check_choice("order", order, (None, "window", "full"))
    check_choice("on_error", on_error, ("raise", "record"))
    check_function("map", map_)
    check_function("filter", filter_)
    if media and suffix != ".tar":
        raise ValueError(
            f"media=True: only tar shards have sidecars of frames, and these end in {suffix!r}; "
            "Parquet shards take media as they are, without media=True"
        )


def check_ray(ray: Any) -> None:
    """Refuse what names no Ray cluster."""
    if isinstance(ray, bool):
        return
    if not isinstance(ray, str):
        raise TypeError(f"ray={ray!r:.80}: True, 'auto', or the address 'host:port' of a cluster")
    host, _, port = ray.rpartition(":")
    if ray != "auto" and not (host and "/" not in host and port.isdecimal()):
        raise ValueError(
            f"ray={shown(ray)!r}: 'auto', or 'host:port' of the head node, on a machine of the "
            "cluster; from elsewhere, run the program there by `ray job submit`"
        )
