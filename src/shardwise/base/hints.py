"""Hints for people from other libraries: what to write here instead."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches

_LOADER = "loader = sw.DataLoader(ds, batch_size=64, shuffle=True)"

# Methods of WebDataset's pipelines and Hugging Face's datasets: a reason, and the code to write.
_ORDER = ("the loader makes the order", _LOADER, "for batch in loader: ...")
_BATCHES = ("the loader makes batches", _LOADER, "for batch in loader: x, y = batch['jpg'], ...")
_RANKS = (
    "the loader finds rank and world size and divides the samples",
    "loader = sw.DataLoader(ds, batch_size=64)",
    "loader = sw.DataLoader(ds, batch_size=64, rank=0, world_size=2)  # or says them",
)
_LENGTH = (
    "the loader knows the exact length, and epochs may have another one",
    "loader = sw.DataLoader(ds, batch_size=64, shuffle=True, epoch_size=10_000)",
    "print(len(loader))",
)
_PART = (
    "a part of the samples is a subset",
    "ds = ds.subset(range(100))",
    "ds = ds.subset(range(100, len(ds)))",
)
_NAMES = (
    "fields are renamed by a transform",
    "ds = ds.select('jpg', 'cls')",
    "ds = ds.map(lambda sample: {'image': sample['jpg'], 'label': sample['cls']})",
)
_FIELDS = ("fields are chosen by select()", "names = ds.fields", "ds = ds.select('jpg', 'cls')")
_TENSORS = (
    "the loader makes tensors, or arrays",
    "loader = sw.DataLoader(ds, batch_size=64)",
    "loader = sw.DataLoader(ds, batch_size=64, output='numpy')",
)
_DECODERS = (
    "functions of single fields are decoders",
    "ds = ds.select('jpg', 'cls')",
    "ds = ds.decode(jpg=sw.image(size=224), cls=int)",
)
_STATE = (
    "the position is the loader's",
    "state = loader.state_dict()",
    "loader.load_state_dict(state)",
)
METHODS: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(("shuffle", "to_iterable_dataset"), _ORDER),
    **dict.fromkeys(("batch", "batched", "iter"), _BATCHES),
    **dict.fromkeys(("take", "skip", "slice"), _PART),
    **dict.fromkeys(("shard", "split_by_node", "split_by_worker"), _RANKS),
    **dict.fromkeys(("with_epoch", "with_length", "resampled"), _LENGTH),
    **dict.fromkeys(("rename", "rename_keys", "rename_column", "rename_columns"), _NAMES),
    **dict.fromkeys(("map_dict", "cast_column"), _DECODERS),
    **dict.fromkeys(("column_names", "select_columns", "remove_columns"), _FIELDS),
    **dict.fromkeys(("with_format", "set_format"), _TENSORS),
    **dict.fromkeys(("state_dict", "load_state_dict"), _STATE),
    "unbatched": ("a dataset has single samples", "for sample in ds: ...", "sample = ds[0]"),
    "to_tuple": (
        "the loader makes tuples of batches",
        "loader = sw.DataLoader(ds, batch_size=64, as_tuple=('jpg', 'cls'))",
        "for images, labels in loader: ...",
    ),
    "repeat": (
        "iterating a loader again is the next epoch",
        _LOADER,
        "for epoch in range(10): sum(1 for batch in loader)",
    ),
    "set_epoch": ("the loader counts epochs by itself", _LOADER, "loader.set_epoch(3)"),
    "train_test_split": (
        "the parts of a split are subsets, here by a mask",
        "is_test = np.random.default_rng(seed=0).random(len(ds)) < 0.1",
        "train, test = ds.filter(~is_test), ds.filter(is_test)",
    ),
    "map_tuple": (
        "a sample is a dict until the loader makes a tuple of it",
        "ds = ds.map(lambda sample: {**sample, 'cls': sample['cls'] + 1})",
        "loader = sw.DataLoader(ds, batch_size=64, as_tuple=('jpg', 'cls'))",
    ),
    "compose": (
        "functions of samples are transforms",
        "ds = ds.filter(lambda columns: columns['cls'] > 0, columns=['cls'])",
        "ds = ds.map(lambda sample: {**sample, 'cls': sample['cls'] - 1})",
    ),
}
# Names of other packages that are looked for in this one.
CLASSES: dict[str, str] = {
    "WebDataset": "sw.tar(urls) has the samples and sw.DataLoader(ds, shuffle=True) the order; a "
    "program for WebDataset runs with sw.compat.install(), or is carried over by "
    "sw.from_webdataset(pipeline)",
    "WebLoader": "use sw.DataLoader(ds, batch_size=64)",
    "ShardWriter": "use sw.TarWriter('train-{shard:06d}.tar', max_samples=10_000)",
    "StreamingDataset": "use sw.mds(url) for MosaicML Streaming, sw.litdata(url) for LitData",
    "StreamingDataLoader": "use sw.DataLoader(ds, batch_size=64, shuffle=True)",
    "CombinedStreamingDataset": "use sw.mix({'web': (web, 0.7), 'code': (code, 0.3)})",
    "load_dataset": "use sw.parquet('hf://datasets/ORG/NAME/'), or sw.wrap(dataset)",
}
# Arguments of other packages' functions that are looked for in this one's.
ARGUMENTS: dict[str, str] = {
    **dict.fromkeys(
        ("weights", "probabilities", "proportion"),
        "weights stand beside the datasets, as in sw.mix({'web': (web, 0.7), 'code': (code, 0.3)})",
    ),
    **dict.fromkeys(
        ("batch_size", "shuffle", "seed", "drop_last", "num_workers", "resampled", "shardshuffle"),
        "the loader makes order and batches: sw.DataLoader(ds, batch_size=64, shuffle=True)",
    ),
    **dict.fromkeys(
        ("cache", "local", "cache_dir", "cache_limit", "max_cache_size"),
        "use sw.tar(urls, cache=sw.CacheSettings(directory, max_bytes=500 * 10**9))",
    ),
    **dict.fromkeys(
        ("filter", "filters", "where"),
        "use ds.filter(lambda columns: columns['cls'] < 3, columns=['cls'])",
    ),
    "episodes": "use ds.filter(lambda columns: columns['episode_index'] < 3, "
    "columns=['episode_index'])",
    **dict.fromkeys(
        ("transform", "transforms"), "use ds.map(function), or ds.decode(jpg=function)"
    ),
    **dict.fromkeys(
        ("seq_len", "seq_length", "context_length"), "use length= of sw.pack, block= of sw.tokens"
    ),
    "tokenizer": "use ds.map(tokenize), which returns a dict with 'tokens', or sw.build once",
    "maxcount": "use max_samples= of sw.TarWriter",
    "maxsize": "use max_bytes= of sw.TarWriter",
    "remote": "a path or a URL is the first argument, as in sw.tar(url)",
    "repo_id": "the first argument has it, as in sw.lerobot('hf://datasets/ORG/NAME')",
    "delta_timestamps": "use deltas= of sw.lerobot or sw.windows, in seconds",
    "stopping_strategy": "use until= of sw.mix: 'first', 'all' or a number of samples",
}
# Of functions with such an argument, the names of others that mean it.
_SAME = {
    "weights": ("probabilities", "proportion"),
    "filter": ("where",),
    "map": ("transform", "transforms", "tokenizer"),
    "length": ("seq_len", "seq_length", "context_length"),
    "block": ("seq_len", "seq_length", "context_length"),
    "max_samples": ("maxcount",),
    "max_bytes": ("maxsize",),
    "deltas": ("delta_timestamps",),
}
_MAX_KNOWN = 20
# For `ds.decode("rgb")`.
DECODE_HINT = """decode() takes field=decoder, so that each field has its own. Write
    ds = ds.select('jpg', 'cls')
    ds = ds.decode(jpg=sw.image('rgb', size=224), cls=int)"""
_OPENERS = {
    ".tar": "sw.tar",
    ".parquet": "sw.parquet",
    ".arrow": "sw.parquet",
    ".lance": "sw.lance",
    ".csv": "sw.files",
    ".jsonl": "sw.jsonl",
    ".ndjson": "sw.jsonl",
}


def hint_for(name: str) -> str | None:
    """A hint for a method that a Dataset does not have: what to write instead; None if unknown."""
    if name not in METHODS:
        return None
    why, *lines = METHODS[name]
    return f"a Dataset has no {name}(): {why}. Write\n    " + "\n    ".join(lines)


def hint_for_argument(name: str, known: Sequence[str]) -> str:
    """A clause on what to write for an argument that a function does not have."""
    similar = get_close_matches(name, known, n=3, cutoff=0.8)
    similar = similar or [each for each in known if name in _SAME.get(each, ())]
    if not similar and name in ARGUMENTS:
        return f": {ARGUMENTS[name]}"
    similar = similar or get_close_matches(name, known, n=3)
    if similar:
        return f"; did you mean {' or '.join(f'{each}=' for each in similar)}?"
    # Many would hide the message.
    is_few = len(known) <= _MAX_KNOWN
    return f": it has {', '.join(f'{each}=' for each in known)}" if is_few else ""


def hint_for_name(name: str, public: Sequence[str], *, package: str = "sw") -> str:
    """A clause on what to use instead of a name that the package does not have; "" if unknown."""
    if name in CLASSES:
        return f"; {CLASSES[name]}"
    by_case = {each.lower(): each for each in public}
    alike = get_close_matches(name.lower(), by_case, n=1, cutoff=0.75)
    return f"; did you mean {package}.{by_case[alike[0]]}?" if alike else ""


def call_for(path: object) -> str | None:
    """The call that makes a dataset of a path or a list of paths; None for anything else.

    A URL is not repeated: it may hold a secret.

    >>> call_for("train.tar"), call_for(["a.parquet", "b.parquet"]), call_for([1, 2])
    ("sw.tar('train.tar')", 'sw.parquet([...])', None)
    """
    is_list = isinstance(path, list | tuple) and len(path) > 0
    first = path[0] if is_list and isinstance(path, list | tuple) else path
    if not isinstance(first, str | bytes | os.PathLike):
        return None
    text = os.fsdecode(first)
    opener = _OPENERS.get(os.path.splitext(text.partition("?")[0])[1].lower())  # noqa: PTH122
    if is_list:
        # Texts of any other kind are samples.
        return opener and f"{opener}([...])"
    argument = "url" if "://" in text else repr(text)
    if opener is None:
        return f"sw.tar({argument}), sw.parquet(...), sw.lance(...) or sw.files(...)"
    return f"{opener}({argument})"
