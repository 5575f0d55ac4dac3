"""A tokeniser runs once per document, in the build: no epoch, resume or pack calls it again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw

NUM_DOCUMENTS = 60


class Tokenizer:
    """A token per byte; each call appends a byte to a file, whichever process it is made in."""

    def __init__(self, calls: Path) -> None:
        self.calls = calls

    def __call__(self, sample):
        with self.calls.open("ab", buffering=0) as file:
            file.write(b".")
        return {"tokens": np.frombuffer(sample["text"].encode(), np.uint8).tobytes()}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_resumes_and_other_packs_tokenise_nothing(tmp_path, monkeypatch, num_workers):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = [f"{i} " * (1 + i % 9) for i in range(NUM_DOCUMENTS)]
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    calls = tmp_path / "calls"
    source, options = sw.jsonl("text.jsonl"), {"map": Tokenizer(calls), "num_workers": num_workers}
    assert sw.build(source, "tokens/{shard}.tar", samples_per_shard=20, **options)["out"] == 60
    assert os.path.getsize(calls) == NUM_DOCUMENTS

    documents = sw.tar("tokens").decode(tokens=sw.array("uint8"))
    for length in (64, 100):
        packs = sw.pack(documents, length=length)
        state = None
        for world_size in (1, 2):
            seen = []
            for rank in range(world_size):
                loader = sw.DataLoader(
                    packs, 2, shuffle=True, remainder="uneven", rank=rank, world_size=world_size
                )
                with loader:
                    if state is not None:
                        loader.load_state_dict(state)
                    seen += [row for batch in loader for row in batch["documents"].tolist()]
                    done = loader.state_dict()
            state = done
            # An epoch has every document.
            assert {d for row in seen for d in row if d >= 0} == set(range(NUM_DOCUMENTS))
    # The same build again makes nothing.
    sw.build(source, "tokens/{shard}.tar", samples_per_shard=20, **options)
    assert os.path.getsize(calls) == NUM_DOCUMENTS
