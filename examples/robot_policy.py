"""A small policy by imitation, from a LeRobotDataset v3 that the program makes itself.

    python examples/robot_policy.py

A point is driven to a target. The set has its moves as a table, and what a camera saw as one video
of all episodes. The policy sees two pictures and the place of the point, and predicts the next four
moves. It trains for some epochs, with a stop and a resume in the middle of one. It needs
`shardwise[video,parquet]`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

import shardwise as sw

FPS, SIDE, SIZE, EPISODES, CHUNK, EPOCHS = 10, 48, 24, 60, 4, 3
CAMERA = "observation.images.top"


def write_set(root: Path) -> None:
    """Episodes of 6 to 9 moves, in the files and columns of the format."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[object]] = {name: [] for name in (
        "observation.state", "action", "timestamp", "frame_index", "episode_index", "index",
        "task_index")}  # fmt: skip
    episodes, pictures = [], []
    for episode in range(EPISODES):
        place, target = rng.uniform(4, SIDE - 4, (2, 2))
        length, begin = int(rng.integers(6, 10)), len(pictures)
        for frame in range(length):
            move = np.clip((target - place) / 3, -4, 4)
            values = (place.tolist(), move.tolist(), frame / FPS, frame, episode, len(pictures), 0)
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)
            pictures.append(draw(place, target))
            place = place + move
        episodes.append({
            "episode_index": episode, "length": length,
            "dataset_from_index": begin, "dataset_to_index": begin + length,
            f"videos/{CAMERA}/chunk_index": 0, f"videos/{CAMERA}/file_index": 0,
            f"videos/{CAMERA}/from_timestamp": begin / FPS,
        })  # fmt: skip
    write_video(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", pictures)
    info = {
        "codebase_version": "v3.0", "fps": FPS,
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {CAMERA: {"dtype": "video", "shape": [SIDE, SIDE, 3]}},
    }  # fmt: skip
    for name, table in (
        ("data/chunk-000/file-000", pa.table(rows)),
        ("meta/episodes/chunk-000/file-000", pa.Table.from_pylist(episodes)),
        ("meta/tasks", pa.table({"task": ["reach the target"], "task_index": [0]})),
    ):
        path = root / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    (root / "meta/info.json").write_text(json.dumps(info))


def draw(place: np.ndarray, target: np.ndarray) -> np.ndarray:
    """What the camera sees: the target in green, the point in red."""
    picture = np.zeros((SIDE, SIDE, 3), np.uint8)
    for (y, x), channel in ((target, 1), (place, 0)):
        picture[int(y) - 3 : int(y) + 4, int(x) - 3 : int(x) + 4, channel] = 255
    return picture


def write_video(path: Path, pictures: list[np.ndarray]) -> None:
    """One file, with a key frame in two, as LeRobot encodes."""
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"g": "2"})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


class Policy(nn.Module):
    """Two pictures and a place -> the next moves."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Flatten(), nn.Linear(6 * SIZE**2, 64), nn.ReLU())
        self.act = nn.Sequential(nn.Linear(66, 64), nn.ReLU(), nn.Linear(64, 2 * CHUNK))

    def forward(self, pictures: Tensor, place: Tensor) -> Tensor:
        """Predict moves `[B, CHUNK, 2]`."""
        seen = self.see(pictures.float() / 255)
        moves: Tensor = self.act(torch.cat([seen, place / SIDE], 1))
        return moves.unflatten(1, (CHUNK, 2))


def loss_of(policy: Policy, batch: dict[str, Tensor]) -> Tensor:
    """The error of the moves that are the episode's own, not the last one repeated."""
    moves = policy(batch[CAMERA], batch["observation.state"].float())
    return ((moves - batch["action"]) ** 2)[batch["action.mask"]].mean()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_set(Path(folder))
        ds = sw.lerobot(
            folder,
            deltas={CAMERA: [-1 / FPS, 0], "action": [i / FPS for i in range(CHUNK)]},
            size=SIZE,
        )
        print(f"{len(ds)} windows of {EPISODES} episodes; the task: {ds[0]['task']}")
        is_test = ds.column("episode_index") % 6 == 0
        train, test = ds.filter(~is_test), ds.filter(is_test)
        policy = Policy()
        optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
        seen: list[int] = []
        state, epoch = None, 0
        while epoch < EPOCHS:
            # Stops in the middle of the first epoch; the next loader resumes there.
            with sw.DataLoader(
                train, batch_size=16, shuffle=True, remainder="uneven", num_workers=0
            ) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for number, batch in enumerate(loader):
                    optimizer.zero_grad()
                    loss = loss_of(policy, batch)
                    loss.backward()
                    optimizer.step()
                    seen += batch["index"].tolist()
                    if state is None and number == 9:
                        break
                state = loader.state_dict()
            epoch = len(seen) // len(train)
        assert sorted(seen) == sorted([*train.column("index").tolist()] * EPOCHS)
        [batch] = sw.DataLoader(test, batch_size=len(test), num_workers=0)
        with torch.no_grad():
            error = float(loss_of(policy, batch))
        still = float((batch["action"] ** 2)[batch["action.mask"]].mean())
        print(f"unseen episodes: error {error:.2f}, of a policy that never moves {still:.2f}")
        assert error < still


if __name__ == "__main__":
    main()
