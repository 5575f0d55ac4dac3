"""A small vision-language model on chats of interleaved text and pictures, 0 to 4 in each."""

from __future__ import annotations

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn

import shardwise as sw

IMAGE, VOCABULARY, WIDTH, HEADS, LENGTH = 256, 257, 64, 4, 64
EPOCHS, TEST = 2, 80


def write_chats(folder: Path, count: int = 500) -> None:
    """Write chats about handwritten digits: a turn shows pictures, or a numeral, and asks."""
    digits = load_digits()
    rng = np.random.default_rng(0)
    with sw.TarWriter(f"{folder}/chats-{{shard:03d}}.tar", max_samples=200) as writer:
        for number in range(count):
            sample: dict[str, Any] = {"__key__": f"{number:05d}"}
            turns, images = [], []
            for _ in range(int(rng.integers(1, 5))):
                chosen = int(rng.integers(len(digits.images)))
                answer = str(digits.target[chosen])
                if rng.random() < 0.3:
                    turns.append({"user": f"say {answer}", "assistant": answer})
                    continue
                file = io.BytesIO()
                pixels = (digits.images[chosen] * 15.9).astype(np.uint8)
                Image.fromarray(pixels).save(file, "PNG")
                # Names in no order: the list in the JSON says which comes first.
                images.append(f"{rng.integers(10**6)}.png")
                sample[images[-1]] = file.getvalue()
                turns.append({"user": "<image> read", "assistant": answer})
            writer.write({**sample, "json": {"images": images, "turns": turns}})


def encode(sample: dict[str, Any]) -> dict[str, Any]:
    """Encode the turns as bytes, with a token for each picture; answers are what is learned."""
    tokens: list[int] = []
    learned: list[bool] = []
    for turn in sample["json"]["turns"]:
        before, *after = turn["user"].split("<image>")
        asked = [*before.encode()]
        for text in after:
            asked += [IMAGE, *text.encode()]
        answer = [*turn["assistant"].encode()]
        tokens += [*asked, ord(":"), *answer, ord("\n")]
        learned += [False] * (len(asked) + 1) + [True] * len(answer) + [False]
    pictures = np.array(sample["*.png"], np.uint8).reshape(-1, 8, 8)
    return {"tokens": np.array(tokens), "learned": np.array(learned), "pictures": pictures}


class Model(nn.Module):
    """A block of causal attention over tokens, of which some are pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.pictures = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, WIDTH)
        )
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.scores = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Scores of each next token, float32 `[rows, length, VOCABULARY]`."""
        tokens = batch["tokens"]
        x = self.tokens(tokens)
        # Pictures and their tokens stand in one order: chat by chat, as the chat shows them.
        is_there = batch["pictures.mask"][..., 0, 0]
        shown = batch["pictures"][is_there].float() / 255
        x = x.masked_scatter((tokens == IMAGE)[..., None], self.pictures(shown))
        length = tokens.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.blocks(x + self.places.weight[:length], mask=causal, is_causal=True)
        return self.scores(x)


def answers(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Scores and right tokens of all answers."""
    is_answer = batch["learned"][:, 1:] & batch["tokens.mask"][:, 1:]
    return model(batch)[:, :-1][is_answer], batch["tokens"][:, 1:][is_answer]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more gain nothing for a model of this size
    with TemporaryDirectory() as folder:
        write_chats(Path(folder))
        chats = sw.tar(folder).select("json", "*.png", order="json.images")
        chats = chats.decode({"*.png": sw.image("gray", layout="HWC")}, json=sw.json()).map(encode)
        train = chats.subset(range(TEST, len(chats)))
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        options: dict[str, Any] = {"batch_size": 16, "ragged": "pad", "num_workers": 0}
        with sw.DataLoader(train, shuffle=True, seed=1, remainder="drop", **options) as loader:
            for epoch in range(EPOCHS):
                for batch in loader:
                    loss = nn.functional.cross_entropy(*answers(model, batch))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                print(f"epoch {epoch}: loss {loss.item():.3f}")
            assert loader.certificate()["ok"]
        model.eval()
        right = []
        with torch.no_grad():
            for batch in sw.DataLoader(chats.subset(range(TEST)), **options):
                scores, wanted = answers(model, batch)
                right += (scores.argmax(-1) == wanted).tolist()
    share = sum(right) / len(right)
    print(f"{share:.0%} of {len(right)} answers are right")
    assert share > 0.6


if __name__ == "__main__":
    main()
