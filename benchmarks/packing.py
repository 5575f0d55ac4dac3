"""Packing documents, and reading blocks of tokens, against TRL and LitData in the same run.

CPU seconds of one process, so that other work on the machine counts for little; ratios are what to
compare. Peers that are not installed are left out.

    python -m benchmarks.packing            # pip install trl datasets litdata
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import shardwise as sw
from shardwise.extensions.packs.packing import pack_documents

LENGTH = 4096
BLOCK = 2048
BATCH = 256


def chats(count: int) -> NDArray[np.int64]:
    """Lengths of chats: log-normal, median 490 tokens."""
    return np.random.default_rng(0).lognormal(6.2, 1.0, count).astype(np.int64).clip(1)


def docstrings() -> NDArray[np.int64]:
    """Bytes of the docstrings of Python's own library: real text, in the order of the files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    lengths = []
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in path.parts:
            lengths += [len(text.encode()) for text in _docstrings(path)]
    return np.array(lengths)


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def cpu(call: Callable[[], object]) -> tuple[float, object]:
    """CPU seconds of this process and its threads, and what it returned."""
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


def drain(items: Iterable[object]) -> None:
    """Make all and keep none: fresh memory for each would cost more than the work."""
    deque(items, maxlen=0)


def next_fit(lengths: NDArray[np.int64]) -> float:
    """The share of places used if documents are put behind one another until a row is full."""
    rows, used = 1, 0
    for n in np.minimum(lengths, LENGTH).tolist():
        if used + n > LENGTH:
            rows, used = rows + 1, 0
        used += n
    return float(np.minimum(lengths, LENGTH).sum() / (rows * LENGTH))


def packing(name: str, lengths: NDArray[np.int64]) -> None:
    """Shares of used places, and microseconds a document."""
    print(f"\n{name}: {len(lengths):,} documents, {lengths.sum():,} tokens, rows of {LENGTH}")
    print(f"  {'next fit':34} {next_fit(lengths):.4f}")
    for window in (256, 1024, 4096, 16384):
        seconds, packs = cpu(lambda window=window: pack_documents(lengths, length=LENGTH,
                                                                  window=window))  # fmt: skip
        used, each = packs.efficiency, seconds / len(lengths) * 1e6
        print(f"  {f'shardwise, window {window:,}':34} {used:.4f}  {each:7.2f} us a document")
    if importlib.util.find_spec("trl") is None:
        return
    import datasets
    from trl import pack_dataset

    datasets.disable_progress_bars()
    datasets.disable_caching()
    rows = [np.zeros(n, np.int32) for n in lengths.tolist()]
    data = datasets.Dataset.from_dict({"input_ids": rows})
    for batch in (1000, 4096):
        options = {"batch_size": batch, "keep_in_memory": True}
        seconds, packed = cpu(
            lambda options=options: pack_dataset(data, LENGTH, "bfd_split", options)
        )
        used = lengths.sum() / (len(packed) * LENGTH)
        each = seconds / len(lengths) * 1e6
        print(
            f"  {f'TRL bfd_split, batches of {batch:,}':34} {used:.4f}  {each:7.2f} us a document"
        )


def packs_read(count: int) -> None:
    """What a pack costs when it is read: documents in memory, all fields and the tokens alone."""
    lengths = chats(count).clip(1, LENGTH)
    documents = [np.zeros(n, np.uint16) for n in lengths.tolist()]
    packs = sw.pack(sw.wrap([{"tokens": d} for d in documents]), length=LENGTH, lengths=lengths)
    print(
        f"\nreading {len(packs):,} packs of {len(documents) / len(packs):.1f} documents in memory"
    )
    for fields in (packs.fields, ("tokens", "cu_seqlens", "max_seqlen")):
        source = packs.select(*fields)
        ids = [np.arange(i, min(i + 16, len(packs))) for i in range(0, len(packs), 16)]
        seconds, _ = cpu(lambda source=source, ids=ids: drain(map(source.load, ids)))
        print(f"  {', '.join(fields):90} {seconds / len(packs) * 1e6:6.1f} us a pack")


def blocks(folder: Path) -> None:
    """Blocks a CPU second at random places, from the page cache."""
    tokens = np.random.default_rng(0).integers(0, 50_000, 60_000_000).astype(np.uint16)
    path = folder / "train.bin"
    tokens.tofile(path)
    source = sw.tokens(path, block=BLOCK, dtype="uint16").source
    count = source.manifest.num_samples
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, count, BATCH) for _ in range(400)]
    for ids in batches:
        source.read(ids)
    print(f"\nblocks of {BLOCK} + 1 tokens at random places, batches of {BATCH}")
    _blocks(
        "shardwise, tokens and keys", lambda: drain(source.read(ids) for ids in batches), batches
    )
    raw = np.memmap(path, np.uint16, "r")

    def floor() -> None:
        for ids in batches:
            out = np.empty((len(ids), BLOCK + 1), np.uint16)
            for row, start in enumerate((ids * BLOCK).tolist()):
                out[row] = raw[start : start + BLOCK + 1]

    def nanogpt() -> None:
        import torch

        for ids in batches:
            rows = [torch.from_numpy(raw[i : i + BLOCK + 1].astype(np.int64))
                    for i in (ids * BLOCK).tolist()]  # fmt: skip
            torch.stack(rows)

    _blocks("numpy, a copy a row", floor, batches)
    _blocks("nanoGPT's way, int64 tensors", nanogpt, batches)
    if importlib.util.find_spec("litdata") is not None:
        litdata(folder, tokens, batches)


def litdata(folder: Path, tokens: NDArray[np.uint16], batches: list[NDArray[np.int64]]) -> None:
    """LitData's own chunks: read by itself and by `sw.tokens`."""
    import torch
    from litdata.streaming import StreamingDataset, TokensLoader
    from litdata.streaming.cache import Cache

    lit = folder / "lit"
    lit.mkdir()
    cache = Cache(str(lit), chunk_bytes="64MB", item_loader=TokensLoader(BLOCK))
    for i, part in enumerate(np.array_split(tokens.astype(np.int32), 200)):
        cache[i] = torch.from_numpy(part)
    cache.done()
    cache.merge()
    data = StreamingDataset(str(lit), item_loader=TokensLoader(BLOCK), shuffle=False)
    source = sw.tokens(lit, block=BLOCK).source
    ids = np.concatenate(batches)[:20_000]
    ids = ids[ids < min(len(data), source.manifest.num_samples)]
    few = [ids[:2000]]
    data[int(ids[0])]
    _blocks("LitData, int32 chunks, in order", lambda: drain(data[i] for i in range(2000)), few)
    ours = [np.arange(i, i + BATCH) for i in range(0, 2000, BATCH)]
    for each in ours:
        source.read(each)
    _blocks(
        "shardwise, the same chunks, in order", lambda: drain(source.read(i) for i in ours), ours
    )


def _blocks(name: str, call: Callable[[], object], batches: list[NDArray[np.int64]]) -> None:
    seconds = min(cpu(call)[0] for _ in range(3))
    count = sum(map(len, batches))
    print(f"  {name:40} {count / seconds:12,.0f} blocks a CPU second")


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50_000)
    options = parser.parse_args()
    packing("chats", chats(options.documents))
    packing("docstrings", docstrings())
    packs_read(options.documents // 5)
    with tempfile.TemporaryDirectory() as folder:
        blocks(Path(folder))


if __name__ == "__main__":
    main()
