"""The text and the model of `language_model.py`: Python's own manual and docstrings."""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

LENGTH, WIDTH, HEADS = 128, 64, 4


def write_text(folder: Path) -> None:
    """Two sources of documents, as JSON lines: the manual's sections, and docstrings."""
    for source, documents in (("manual", topics.items()), ("docstrings", _docstrings())):
        with (folder / f"{source}.jsonl").open("w") as file:
            for name, text in documents:
                print(json.dumps({"name": name, "text": text}), file=file)


def _docstrings() -> Iterator[tuple[str, str]]:
    """The docstrings of a part of Python's library, with the names of their modules."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-m]*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield path.stem, text


class Model(nn.Module):
    """One block of attention within documents, and a layer on top."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, 256))

    def forward(self, tokens: Tensor, places: Tensor, documents: Tensor) -> Tensor:
        """Scores of the next token, float32 `[rows, LENGTH, 256]`."""
        x = self.tokens(tokens) + self.places(places)
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        # A token sees its own document's tokens up to itself.
        same = documents[:, None, :, None] == documents[:, None, None, :]
        seen = same & torch.ones(same.shape[-2:], dtype=torch.bool).tril()
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)
        return self.out(x)


def row_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Each row's mean loss of the next token, where it is of the same document: `[rows]`."""
    tokens = batch["tokens"]
    logits = model(tokens, batch["position_ids"], batch["document_ids"])[:, :-1]
    is_target = (batch["loss_mask"] & (batch["position_ids"] > 0))[:, 1:]
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return (losses * is_target).sum(1) / is_target.sum(1).clamp(min=1)
