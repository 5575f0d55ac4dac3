"""Sets of LeRobotDataset v3: each window equal to the format's own arithmetic."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from tests.extensions.remote.stores.test_hub import hub
from tests.support.media import needs_ffmpeg, number_in, numbers_in, zeroed
from tests.support.robots import AV1, CAMERAS, FPS, PICTURE, TOP, WRIST, number_of, write_robots

DELTAS = {
    "action": [i / FPS for i in range(16)],
    "observation.state": [-0.1, 0],
    TOP: [-0.2, 0, 0.5],
}


@pytest.fixture(scope="module")
def robots(tmp_path_factory):
    needs_ffmpeg()
    return write_robots(tmp_path_factory.mktemp("robots"))


def test_a_name_of_the_hub_without_its_scheme_is_answered_with_it():
    with pytest.raises(sw.MissingShardError, match=r"hub is 'hf://datasets/ORG/NAME'"):
        sw.lerobot("lerobot/pusht")


@pytest.fixture
def copy(robots, tmp_path):
    """A copy of the set, to be changed."""
    root = tmp_path / "set"
    shutil.copytree(robots.root, root)
    return root


def expected_rows(robots, row, deltas):
    """The rows of a window, and which are padding, as LeRobot has them."""
    begin, end = robots.bounds[robots.episode(row)], robots.bounds[robots.episode(row) + 1]
    steps = [round(seconds * FPS) for seconds in deltas]
    rows = [max(begin, min(end - 1, row + step)) for step in steps]
    return rows, [row + step < begin or row + step >= end for step in steps]


def assert_right(robots, sample, row):
    for name in ("action", "observation.state", TOP):
        rows, is_pad = expected_rows(robots, row, DELTAS[name])
        assert (~np.asarray(sample[f"{name}.mask"])).tolist() == is_pad
        if name == TOP:
            numbers = [number_of(each, TOP) for each in rows]
            assert numbers_in(np.asarray(sample[TOP]), "TCHW") == numbers
        elif name == "action":
            firsts = [robots.bounds[robots.episode(each)] for each in rows]
            values = [[2 * each, each - first] for each, first in zip(rows, firsts, strict=True)]
            assert np.asarray(sample[name]).tolist() == values
        else:
            assert np.asarray(sample[name])[:, 0].tolist() == rows
    assert number_in(np.asarray(sample[WRIST]).transpose(1, 2, 0)) == number_of(row, WRIST)


def test_each_window_is_the_formats_own(robots):
    ds = sw.lerobot(robots.root, deltas=DELTAS)
    assert len(ds) == sum(robots.lengths)
    for row, sample in enumerate(ds):
        assert_right(robots, sample, row)
        assert sample["index"] == row
        assert sample["note"] == f"row {row}"
        assert sample["task"] == ("lift", "push")[robots.episode(row) % 2]
        assert sample[PICTURE][:, 0, 0].tolist() == [row, 0, 7]


@pytest.mark.long
def test_videos_of_av1_as_lerobot_writes_them(tmp_path):
    needs_ffmpeg()
    robots = write_robots(tmp_path / "set", (5, 7), codec=AV1)
    for row, sample in enumerate(sw.lerobot(robots.root, deltas=DELTAS)):
        assert_right(robots, sample, row)


def test_each_window_comes_once_on_any_number_of_ranks(robots):
    ds = sw.lerobot(robots.root, deltas=DELTAS, size=(120, 160)).select("action", WRIST, TOP)
    seen = []
    for rank in range(2):
        with sw.DataLoader(
            ds, batch_size=8, shuffle=True, rank=rank, world_size=2, num_threads=2,
            num_workers=0, remainder="uneven", output="numpy",
        ) as loader:  # fmt: skip
            for batch in loader:
                seen += batch["__index__"].tolist()
                assert batch["action"].shape[1:] == (16, 2)
                assert batch[TOP].shape[1:] == (3, 3, 120, 160)
                for row, picture in zip(batch["__index__"].tolist(), batch[WRIST], strict=True):
                    assert number_in(picture.transpose(1, 2, 0)) == number_of(row, WRIST)
    assert sorted(seen) == list(range(len(ds)))


def test_worker_processes_give_the_same(robots):
    ds = sw.lerobot(robots.root, deltas=DELTAS, size=60)
    batches = []
    for options in ({"num_workers": 0, "num_threads": 0}, {"num_workers": 1}):
        with sw.DataLoader(ds, batch_size=15, output="numpy", **options) as loader:
            batches.append(list(loader))
    for one, other in zip(*batches, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_set_without_deltas_has_one_row_and_one_picture_a_camera(robots):
    ds = sw.lerobot(robots.root, size=(60, 80))
    sample = pickle.loads(pickle.dumps(ds))[12]
    assert sample["action"].tolist() == [24, 0]
    for camera in CAMERAS:
        assert sample[camera].shape == (3, 60, 80)
        assert number_in(sample[camera].transpose(1, 2, 0)) == number_of(12, camera)
    assert not any(name.endswith(".mask") for name in sample)


def test_episodes_are_left_out_by_a_filter(robots):
    ds = sw.lerobot(robots.root, deltas={"action": [0, 0.1]}).select("action", "episode_index")
    kept = ds.filter(lambda c: c["episode_index"] != 2, columns=["episode_index"])
    assert len(kept) == sum(robots.lengths) - robots.lengths[2]
    assert kept[11]["action"].tolist() == [[22, 0]] * 2


def test_a_set_of_the_hub(robots):
    files = {str(path.relative_to(robots.root)): path.read_bytes()
             for path in robots.root.rglob("*") if path.is_file()}  # fmt: skip
    with hub(files=files, revision="main") as (url, *_):
        config = {"token": "hf_t0ken", "endpoint": url}
        ds = sw.lerobot("hf://datasets/org/name", deltas=DELTAS, storage={"config": config})
        for row in (0, 10, 11, 40):
            assert_right(robots, ds[row], row)


def test_a_set_of_another_version_is_refused(copy):
    change_info(copy, codebase_version="v2.1")
    with pytest.raises(sw.DataError, match=r"version 'v2\.1'.*only v3"):
        sw.lerobot(copy)


def change_info(root, **changes):
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_episodes(root, name, change):
    [path] = root.glob("meta/episodes/*/*")
    table = pq.read_table(path)
    values = change(table.column(name).to_pylist())
    pq.write_table(table.set_column(table.column_names.index(name), name, [values]), path)


def test_a_damaged_picture_names_its_video(copy):
    [path] = (copy / "videos" / WRIST).rglob("*.mp4")
    data = path.read_bytes()
    for number in range(40):
        data = zeroed(data, number, keep=0)
    path.write_bytes(data)
    with pytest.raises(sw.DataError) as caught:
        sw.lerobot(copy)[5]
    assert (caught.value.url, caught.value.field) == (str(path), WRIST)


def test_parts_that_do_not_fit_are_refused(copy):
    change_episodes(copy, "dataset_to_index", lambda ends: [*ends[:-1], ends[-1] + 1])
    with pytest.raises(sw.DataError, match="no cut of the 45 rows"):
        sw.lerobot(copy)
    shutil.rmtree(copy / "meta/episodes")
    with pytest.raises(sw.ShardwiseError, match="episodes"):
        sw.lerobot(copy)


def test_a_video_that_lacks_frames_is_named(copy):
    change_episodes(copy, f"videos/{TOP}/from_timestamp", lambda times: [*times[:-1], 99.0])
    ds = sw.lerobot(copy)
    assert ds[0]["index"] == 0
    with pytest.raises(sw.DataError, match=r"no frame at 99\.7 s") as caught:
        ds[44]
    assert caught.value.url.endswith("file-001.mp4")
    assert ds.select("action", WRIST)[44]["action"].tolist() == [88, 7]
    ds = ds.select("index", TOP, WRIST)
    with sw.DataLoader(ds, batch_size=45, on_error="skip", num_threads=0, output="numpy") as loader:
        [batch] = loader
        assert batch["index"].tolist() == list(range(37))
        assert loader.stats()["skipped"] == 8


@pytest.mark.parametrize(
    "path", ["../{video_key}.mp4", "/etc/{video_key}", "{video_key.__class__}.mp4", "{odd}", "a\0"]
)
def test_a_path_that_leaves_the_set_is_not_read(copy, path):
    change_info(copy, video_path=path)
    with pytest.raises(sw.DataError):
        sw.lerobot(copy)[0]


def test_a_task_without_a_text_is_named(copy):
    pq.write_table(pa.table({"task": ["lift"], "task_index": [0]}), copy / "meta/tasks.parquet")
    ds = sw.lerobot(copy)
    assert ds[0]["task"] == "lift"
    with pytest.raises(sw.DataError, match="field 'task'"):
        ds[11]
    (copy / "meta/tasks.parquet").unlink()
    assert "task" not in sw.lerobot(copy).fields


def test_an_empty_root_is_refused():
    with pytest.raises(ValueError, match="root is empty"):
        sw.lerobot("")
