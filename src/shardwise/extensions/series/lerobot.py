"""`sw.lerobot`: sets of robots in the format LeRobotDataset v3, as windows, and their cameras.

A camera has its frames by row, from files that hold many episodes.
Format: https://huggingface.co/docs/lerobot/lerobot-dataset-v3
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import path_text, suggest_names
from shardwise.base.columns import values_of
from shardwise.base.errors import DataError, MissingShardError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.codecs import image
from shardwise.dataset import Dataset
from shardwise.dataset.transforms import Transforms
from shardwise.extensions.media.clips.chosen import ChosenClip
from shardwise.extensions.media.clips.clip import Clip, ClipDecoder
from shardwise.extensions.media.clips.files import Part, hold_ranges, ranges_by_sample
from shardwise.extensions.media.clips.lone_files import LoneFiles
from shardwise.extensions.media.files.timeline import shown_at
from shardwise.extensions.media.files.track import Track
from shardwise.extensions.series.series import row_offsets
from shardwise.extensions.series.windows import WindowSource
from shardwise.extensions.tables.parquet.source import ParquetSource
from shardwise.sources.files.folder import Listing, Names
from shardwise.sources.files.source import FilesSource
from shardwise.storage import PoolRanges, StorageOptions, is_local, read_whole
from shardwise.storage.options import CacheSettings
from shardwise.storage.urls import beside


class VideoFiles(FilesSource):
    """Files of a directory that are known without a look at it."""

    def __init__(self, root: str, names: Sequence[str], storage: StorageOptions) -> None:
        super().__init__(root, storage=storage)
        shards, opened_ns = [(name, 1) for name in names], time.time_ns()
        self.lone = LoneFiles(self, "mp4")
        self._files = Listing(root, Names(names), "mp4", {}, shards, opened_ns=opened_ns)

    def _list(self) -> Listing:
        return self._files


@dataclass(frozen=True, eq=False)
class Camera:
    """The pictures of a camera by row: the frame nearest to (row of the episode) / fps."""

    videos: VideoFiles
    numbers: NDArray[np.int64]  # the file of each episode
    begins_s: NDArray[np.float64]  # and where it starts there
    bounds: NDArray[np.int64]  # and its rows
    fps: float

    def owner_of(self, row: int) -> tuple[VideoFiles, int]:
        return self.videos, int(self.numbers[np.searchsorted(self.bounds, row, side="right") - 1])

    def read(self, rows: NDArray[np.int64]) -> tuple[list[Clip], int]:
        clips = self._choose_clips(rows)
        held, num_bytes = hold_ranges(self.videos.lone, list(map(_part, clips)))
        return list(map(Clip, held, clips)), num_bytes

    def ranges(self, rows: NDArray[np.int64]) -> Iterable[PoolRanges] | None:
        if is_local(self.videos.url):
            return None
        numbers = self.numbers[self._episodes(rows)].tolist()
        known = [self.videos.lone.has_index(number) for number in numbers]
        wanted = ranges_by_sample(map(_part, self._choose_clips(rows[known])))
        return self.videos.lone.ranges(wanted)

    def _episodes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.bounds, rows[:, 0], side="right") - 1

    def _choose_clips(self, rows: NDArray[np.int64]) -> list[ChosenClip]:
        episodes = self._episodes(rows)
        seconds = (rows - self.bounds[episodes, None]) / self.fps + self.begins_s[episodes, None]
        clips = []
        for number, own in zip(self.numbers[episodes].tolist(), seconds, strict=True):
            try:
                index = self.videos.lone.index(number)
                frames = _frames_at(index.first("video"), own, self.fps)
            except DataError as error:
                error.url, error.index = self.videos.lone.place(number)[0], None
                raise
            clips.append(ChosenClip(number, index, frames, (0, Fraction(0))))
        return clips


def _part(clip: ChosenClip) -> Part:
    return clip.sample, clip.index, clip.ranges(pictures=True, sound=False)


def _frames_at(track: Track, seconds: NDArray[np.float64], fps: float) -> NDArray[np.int64]:
    """The frames nearest to some times; DataError if one is not nearer than half a frame."""
    per_second = track.time_base[1] / track.time_base[0]
    ticks, half = int(track.pts[0]) + seconds * per_second, 0.5 * per_second / fps
    frames = shown_at(track, np.floor(ticks + half).astype(np.int64))
    off = np.abs(track.pts[frames] - ticks)
    if frames.min() < 0 or off.max() > half:
        raise DataError(f"no frame at {seconds[off.argmax()]:g} s, where an episode has one")
    return frames


_CAMERA = re.compile(r"videos/(.+)/from_timestamp")


@suggest_names
def lerobot(
    root: str | PathLike[str],
    *,
    deltas: Mapping[str, Sequence[float]] | None = None,
    size: int | tuple[int, int] | None = None,
    cache: str | PathLike[str] | CacheSettings | None = None,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Frames of a LeRobotDataset v3: a sample per row of its tables, in the order of the episodes.

    A sample has the row's columns, the text of its "task" and a picture `[C, H, W]` per camera.
    Fields of `deltas` are windows within the episode, as those of `sw.windows`; of a camera
    `[T, C, H, W]`. "<field>.mask" is the opposite of LeRobot's "<field>_is_pad". `select` leaves
    cameras out, `filter` episodes. docs/tutorial-robotics.md has more.

    Args:
        root: the directory of the set, local or remote ("hf://datasets/ORG/NAME").
        deltas: by field the seconds from a sample's row to those of its window: LeRobot's
            `delta_timestamps`.
        size: of pictures, one number or (height, width); None for the set's sizes.
        cache: as for `tar`.
        storage: as for `tar`.

    Raises:
        DataError: the set is of another version, or its parts do not fit together.
        ValueError: a field does not exist, or a delta lies between two rows.
    """
    options = StorageOptions.of(storage, cache=cache)
    pictures = image(size=size)
    if not (text := path_text("root", root)):
        raise ValueError("root is empty: give the directory of the set")
    folder = text.rstrip("/")
    if is_local(folder) and not Path(folder).is_dir():
        hub = "a set of the Hugging Face hub is 'hf://datasets/ORG/NAME'"
        raise MissingShardError(f"no such directory; {hub}", url=folder)
    fps, sizes, images, path = _read_info(f"{folder}/meta/info.json", options)
    offsets = row_offsets({} if deltas is None else deltas, fps)
    files = "" if is_local(folder) else "/*/*.parquet"
    table = ParquetSource(f"{folder}/data{files}", storage=options)
    episodes = ParquetSource(f"{folder}/meta/episodes{files}", storage=options)
    begins, ends = (_numbers(episodes, f"dataset_{side}_index") for side in ("from", "to"))
    order = np.argsort(begins, kind="stable")
    bounds = np.append(begins[order], table.manifest.num_samples)
    if bounds[0] or (np.diff(bounds) <= 0).any() or (ends[order] != bounds[1:]).any():
        raise DataError(f"no cut of the {bounds[-1]} rows of the tables", url=episodes.urls[0])
    cameras, decoders = dict[str, Camera](), dict[str, Any]()
    for name in [match[1] for each in episodes.fields if (match := _CAMERA.fullmatch(each))]:
        places = [_numbers(episodes, f"videos/{name}/{kind}_index") for kind in ("chunk", "file")]
        begins_s = _numbers(episodes, f"videos/{name}/from_timestamp", "iuf")[order]
        found, numbers = np.unique(np.array(places)[:, order], axis=1, return_inverse=True)
        with as_data_error("its video_path can't be used", url=f"{folder}/meta/info.json"):
            names = [_video(path, name, *place) for place in found.T.tolist()]
        videos = VideoFiles(folder, names, options)
        cameras[name] = Camera(videos, numbers.reshape(-1), begins_s, bounds, fps)
        form = (pictures.size or sizes.get(name), "stretch", "TCHW", "auto")
        num_frames = len(offsets.get(name, "1"))
        decoders[name] = ClipDecoder(num_frames, *form, is_picture=name not in offsets)
    rows = Dataset(table)
    if stored := [name for name in images if name in rows.fields]:
        rows = rows.decode(**dict.fromkeys(stored, pictures))
    if (tasks := _read_tasks(folder, options)) and "task_index" in rows.fields:
        decoders["task"] = tasks
    aliases = {"task": "task_index"} if "task" in decoders else {}
    source = WindowSource(rows, bounds, offsets, cameras, aliases)
    return Dataset(source, _transforms=Transforms(decoders=decoders, required=frozenset(cameras)))


class _Texts(dict[int, str]):
    __call__ = dict.__getitem__  # as a decoder


def _read_info(url: str, options: StorageOptions) -> tuple[float, dict[str, Any], list[str], str]:
    """Rows per second, sizes of pictures, the columns that have some, and where videos lie."""
    with as_data_error("it is no description of a LeRobotDataset", url=url):
        info = json.loads(read_whole(url, options=options, once=True))
        version, fps = str(info["codebase_version"]), float(info["fps"])
        features = info.get("features", {}).items()
        images = [str(name) for name, each in features if each["dtype"] == "image"]
        sides = {n: tuple(int(m) for m in each.get("shape", ()) if m > 4) for n, each in features}
        sizes = {name: pair for name, pair in sides.items() if len(pair) == 2}
    if not version.startswith("v3.") or not 1e-9 <= fps <= 1e9:
        raise DataError(f"version {version!r:.40}, fps={fps:g}: only v3.0 can be read", url=url)
    return fps, sizes, images, str(info.get("video_path"))


def _numbers(table: ParquetSource, name: str, kinds: str = "iu") -> NDArray[Any]:
    ids = np.arange(table.manifest.num_samples)
    column = np.asarray(table.read(ids, (name,)).fields[name])
    if column.dtype.kind not in kinds or not np.isfinite(column).all():
        raise DataError("an episode has no such number", url=table.urls[0], field=name)
    return column


def _video(path: str, camera: str, chunk: int, file: int) -> str:
    """A path of the format's template; `str.format` does more than foreign bytes may."""
    path = path.replace("{video_key}", camera).replace("{chunk_index:03d}", f"{chunk:03d}")
    return beside("/", path.replace("{file_index:03d}", f"{file:03d}"))[1:]


def _read_tasks(folder: str, options: StorageOptions) -> _Texts:
    """The texts by number: the column beside "task_index", which pandas calls as it likes."""
    try:
        table = ParquetSource(f"{folder}/meta/tasks.parquet", storage=options)
        names = ("task_index", *(name for name in table.fields if name != "task_index"))[:2]
    except MissingShardError:
        return _Texts()
    columns = table.read(np.arange(table.manifest.num_samples), names).fields
    return _Texts(zip(*(values_of(columns[name]) for name in names), strict=True))
