"""Sets of robots in the format LeRobotDataset v3, written by pyarrow and FFmpeg alone.

Row i of the set has the action (2 i, frame in the episode) and the state (i, episode); the picture
of camera c shows the number 4 i + c.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.support.media import HEIGHT, WIDTH, ffmpeg, frame

FPS = 10
TOP, WRIST, PICTURE = "observation.images.top", "observation.images.wrist", "observation.picture"
CAMERAS = (TOP, WRIST)
# LeRobot's own encoder.
AV1 = "-c:v libsvtav1 -preset 12 -crf 30 -g 2 -pix_fmt yuv420p -svtav1-params lp=1"
_H264 = "-c:v libx264 -preset ultrafast -bf 2 -b_strategy 0 -pix_fmt yuv420p -crf 18 -g 7"


@dataclass(frozen=True)
class RobotSet:
    """A set that was written.

    Attributes:
        root: its directory.
        lengths: rows of each episode.
        files: by camera the number of the file of each episode.
        lead: frames before the first episode of each video file.
    """

    root: Path
    lengths: Sequence[int]
    files: dict[str, Sequence[int]]
    lead: int = 3

    @cached_property
    def bounds(self) -> list[int]:
        return [0, *np.cumsum(self.lengths).tolist()]

    def episode(self, row: int) -> int:
        return int(np.searchsorted(self.bounds, row, side="right")) - 1

    def first_frames(self, camera: str) -> list[int]:
        """The frame of its video file at which each episode begins."""
        begins, seen = [], dict[int, int]()
        for length, file in zip(self.lengths, self.files[camera], strict=True):
            begins.append(seen.setdefault(file, self.lead))
            seen[file] += length
        return begins


def number_of(row: int, camera: str) -> int:
    return 4 * row + CAMERAS.index(camera)


def write_robots(
    root: Path, lengths: Sequence[int] = (11, 1, 25, 8), *, codec: str = _H264, **changes: Any
) -> RobotSet:
    """Write a set with two cameras: one whose episodes lie in two files, one with all in one."""
    one, two = [0] * len(lengths), [n * 2 // len(lengths) for n in range(len(lengths))]
    made = RobotSet(root, lengths, {TOP: two, WRIST: one})
    features: dict[str, Any] = {
        TOP: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3]},
        WRIST: {"dtype": "video"},
    }
    features |= {PICTURE: {"dtype": "image"}, "action": {"dtype": "float32"}}
    info = {"codebase_version": "v3.0", "fps": FPS, "features": features, "video_path":
            "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"}  # fmt: skip
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info | changes))
    tasks = pa.table({"task_index": [1, 0], "__index_level_0__": ["push", "lift"]})
    pq.write_table(tasks, root / "meta/tasks.parquet")
    _write_rows(made)
    _write_episodes(made)
    for camera in CAMERAS:
        for file in set(made.files[camera]):
            rows = [made.bounds[e] + i for e, length in enumerate(lengths)
                    if made.files[camera][e] == file for i in range(length)]  # fmt: skip
            _write_video(made, camera, file, rows, codec)
    return made


def _write_rows(made: RobotSet) -> None:
    """A row group for each episode, and two files of them."""
    schema = None
    for number, half in enumerate(np.array_split(np.arange(len(made.lengths)), 2)):
        groups = []
        for episode in half.tolist():
            rows = np.arange(made.bounds[episode], made.bounds[episode + 1])
            frames = rows - rows[0]
            groups.append(pa.table({
                "observation.state": _vectors(rows, np.full_like(rows, episode)),
                "action": _vectors(2 * rows, frames),
                PICTURE: [{"bytes": _png(row), "path": None} for row in rows.tolist()],
                "note": [f"row {row}" for row in rows.tolist()],
                "timestamp": (frames / FPS).astype(np.float32),
                "frame_index": frames, "episode_index": np.full_like(rows, episode),
                "index": rows, "task_index": np.full_like(rows, episode % 2),
            }))  # fmt: skip
        path = made.root / f"data/chunk-000/file-{number:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = schema or groups[0].schema
        with pq.ParquetWriter(path, schema) as writer:
            for group in groups:
                writer.write_table(group)


def _vectors(*columns: np.ndarray) -> pa.Array:
    values = np.stack(columns, 1).astype(np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _png(row: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (row % 256, row // 256, 7)).save(file, "PNG")
    return file.getvalue()


def _write_episodes(made: RobotSet) -> None:
    columns: dict[str, Any] = {
        "episode_index": range(len(made.lengths)), "length": made.lengths,
        "tasks": [["push"]] * len(made.lengths),
        "dataset_from_index": made.bounds[:-1], "dataset_to_index": made.bounds[1:],
        "stats/action/mean": [[0.5, 0.5]] * len(made.lengths),
        f"stats/{TOP}/mean": [[[[0.1]], [[0.2]], [[0.3]]]] * len(made.lengths),
    }  # fmt: skip
    for camera in CAMERAS:
        begins = np.array(made.first_frames(camera)) / FPS
        columns |= {
            f"videos/{camera}/chunk_index": [0] * len(begins),
            f"videos/{camera}/file_index": made.files[camera],
            f"videos/{camera}/from_timestamp": begins,
            f"videos/{camera}/to_timestamp": begins + np.array(made.lengths) / FPS,
        }
    path = made.root / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), path)


def _write_video(made: RobotSet, camera: str, file: int, rows: Sequence[int], codec: str) -> None:
    path = made.root / f"videos/{camera}/chunk-000/file-{file:03d}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = [0] * made.lead + [number_of(row, camera) for row in rows]
    raw = f"-f rawvideo -pix_fmt rgb24 -s {WIDTH}x{HEIGHT} -r {FPS} -i -"
    data = b"".join(frame(number).tobytes() for number in numbers)
    ffmpeg(*raw.split(), *codec.split(), str(path), data=data)
