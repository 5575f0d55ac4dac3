"""Windows of a LeRobotDataset v3, beside PyAV that seeks and a table that is read row by row.

    python -m benchmarks.robots [FOLDER]

Writes a set of 40 episodes of 150 rows in FOLDER (else a temporary one): one camera, 640x480 at 30
frames per second, all episodes in one H.264 file with a key frame in 2 (as LeRobot encodes) and in
30 frames. Prints CPU milliseconds per window, each the least of three rounds that take turns; one
thread, no worker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

EPISODES, LENGTH, FPS, BATCH, WINDOWS = 40, 150, 30, 64, 256
CAMERA, BACK = "observation.images.top", 3
ACTIONS = [i / FPS for i in range(16)]


def write_set(root: Path, gop: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    video = root / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    for part in (video, root / "data/chunk-000/x", root / "meta/episodes/chunk-000/x"):
        part.parent.mkdir(parents=True)
    rows = np.arange(EPISODES * LENGTH)
    source = f"testsrc2=s=640x480:r={FPS}:d={len(rows) / FPS}"
    command = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, "-g", str(gop)]
    subprocess.run([*command, "-bf", "0", "-pix_fmt", "yuv420p", str(video)], check=True)
    values = pa.array(np.repeat(rows, 14).astype(np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, 14)
    table = pa.table({
        "observation.state": vectors, "action": vectors, "episode_index": rows // LENGTH,
        "timestamp": (rows % LENGTH / FPS).astype(np.float32), "index": rows,
    })  # fmt: skip
    pq.write_table(table, root / "data/chunk-000/file-000.parquet", row_group_size=LENGTH)
    begins = np.arange(EPISODES) * LENGTH
    columns = {
        "dataset_from_index": begins, "dataset_to_index": begins + LENGTH,
        f"videos/{CAMERA}/chunk_index": begins * 0, f"videos/{CAMERA}/file_index": begins * 0,
        f"videos/{CAMERA}/from_timestamp": begins / FPS,
    }  # fmt: skip
    pq.write_table(pa.table(columns), root / "meta/episodes/chunk-000/file-000.parquet")
    info = {
        "codebase_version": "v3.0", "fps": FPS,
        "features": {CAMERA: {"dtype": "video", "shape": [480, 640, 3]}},
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }  # fmt: skip
    (root / "meta/info.json").write_text(json.dumps(info))


def loaded(ds: Any) -> Callable[[], np.ndarray]:
    """The first windows of an epoch, by the loader."""
    import shardwise as sw

    def run() -> np.ndarray:
        ids = []
        with sw.DataLoader(ds, batch_size=BATCH, shuffle="full", num_threads=0, output="numpy",
                           rank=0, world_size=1) as loader:  # fmt: skip
            for batch in loader:
                ids.append(batch["__index__"])
                if len(ids) * BATCH >= WINDOWS:
                    break
        return np.concatenate(ids)

    return run


def seeking(root: Path, ids: np.ndarray) -> Callable[[], object]:
    """The same frames by PyAV, which keeps the file open and seeks."""
    import av

    container = av.open(str(root / f"videos/{CAMERA}/chunk-000/file-000.mp4"))
    stream = container.streams.video[0]
    stream.codec_context.thread_count = 1
    tick, begin = float(stream.time_base), stream.start_time or 0

    def frames(numbers: list[int]) -> list[np.ndarray]:
        container.seek(begin + round(numbers[0] / FPS / tick), stream=stream)
        made, left = [], set(numbers)
        for frame in container.decode(stream):
            number = round((frame.pts - begin) * tick * FPS)
            if number in left:
                left.remove(number)
                made.append(frame.to_ndarray(format="rgb24").transpose(2, 0, 1))
            if not left:
                return made
        raise AssertionError(f"no frames {left}")

    def run() -> None:
        for at in range(0, len(ids), BATCH):
            windows = []
            for row in ids[at : at + BATCH].tolist():
                first = max(row - BACK, row // LENGTH * LENGTH)
                made = frames(sorted({first, row}))
                windows.append(np.stack([made[0], made[-1]]))
            np.stack(windows)

    return run


def row_by_row(root: Path, ids: np.ndarray) -> Callable[[], object]:
    """The windows of the table, a read for each row of a window."""
    import shardwise as sw

    rows = sw.parquet(root / "data").select("action", "observation.state")

    def run() -> None:
        for row in ids.tolist():
            last = row // LENGTH * LENGTH + LENGTH - 1
            np.stack([rows[min(row + i, last)]["action"] for i in range(len(ACTIONS))])
            rows[row]

    return run


def compare(runs: dict[str, Callable[[], object]]) -> None:
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(4):  # the first is a warm-up
        for name, run in runs.items():
            begin = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - begin)
    for name, seconds in best.items():
        print(f"{name:44} {1000 * seconds / WINDOWS:8.3f} ms")


def main(folder: Path) -> None:
    import shardwise as sw

    for gop in (2, 30):
        root = folder / f"gop{gop}"
        if not root.exists():
            write_set(root, gop)
        ds = sw.lerobot(root, deltas={CAMERA: [-BACK / FPS, 0]}).select(CAMERA)
        ids = loaded(ds)()
        compare({
            f"2 frames, key frame in {gop}: sw.lerobot": loaded(ds),
            f"2 frames, key frame in {gop}: PyAV seeks": seeking(root, ids),
        })  # fmt: skip
    table = sw.lerobot(root, deltas={"action": ACTIONS}).select("action", "observation.state")
    compare({
        "16 actions: sw.lerobot, a read per batch": loaded(table),
        "16 actions: a read per row": row_by_row(root, ids),
    })  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
