"""Programs written for WebDataset run as they are, on one rank and on two with two workers each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.torchrun import run_program, torchrun
from tests.support.wds_shards import SIZES, png_shards, video_shards

# `tests/compat/test_ranks_and_workers.py` has ranks and workers in little time.
pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "programs" / "recipes.py"
NUM = sum(SIZES)


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[list[int]]]]:
    folder = tmp_path_factory.mktemp("recipes")
    urls = png_shards(folder / "shards") + video_shards(folder / "shards")
    torchrun(PROGRAM, folder, *urls, nproc=2, timeout=280)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def on_one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[int]]]:
    folder = tmp_path_factory.mktemp("recipes")
    urls = png_shards(folder / "shards") + video_shards(folder / "shards")
    code = (
        "import json, runpy, sys; names = runpy.run_path(sys.argv[1]); "
        "print(json.dumps(names['run_all'](sys.argv[2:], 0)))"
    )
    done = run_program("-W", "ignore", "-c", code, PROGRAM, *urls, timeout=280)
    found: dict[str, list[list[int]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [i for batch in batches for i in batch]


def test_the_resampled_article_program_gives_its_epoch(on_one_rank, on_two_ranks):
    for found in (on_one_rank, *on_two_ranks):
        ids = flat(found["article_resampled"])
        assert len(ids) == 10_000
        assert set(ids) == set(range(NUM))
    assert on_two_ranks[0]["article_resampled"] != on_two_ranks[1]["article_resampled"]


def test_the_article_pipeline_reads_each_sample_once(on_one_rank, on_two_ranks):
    assert sorted(flat(on_one_rank["article_pipeline"])) == list(range(NUM))
    both = [i for found in on_two_ranks for i in flat(found["article_pipeline"])]
    assert sorted(both) == list(range(NUM))


def test_the_article_program_for_videos_reads_each_once(on_one_rank, on_two_ranks):
    assert flat(on_one_rank["article_video"]) == list(range(8))
    both = [i for found in on_two_ranks for i in flat(found["article_video"])]
    assert sorted(both) == list(range(8))


@pytest.mark.parametrize("name", ["imagenet", "imagenet with helpers"])
def test_the_imagenet_recipe_gives_equal_steps(on_one_rank, on_two_ranks, name):
    assert len(on_one_rank[name]) == 2 * (NUM // 4)
    assert [len(found[name]) for found in on_two_ranks] == [2 * (NUM // 8)] * 2
    # Within the first epoch of both ranks no sample comes twice, but for a second pass's.
    first = Counter(i for found in on_two_ranks for i in flat(found[name][: NUM // 8]))
    assert max(first.values()) <= 2
    assert len(first) > 0.8 * NUM


def test_the_resampled_imagenet_recipe_differs_between_ranks(on_one_rank, on_two_ranks):
    ids = [flat(found["imagenet resampled"]) for found in (on_one_rank, *on_two_ranks)]
    assert [len(each) for each in ids] == [240] * 3
    assert ids[1] != ids[2]


@pytest.mark.parametrize("helpers", ["", " with helpers"])
def test_the_open_clip_recipe_gives_the_steps_that_it_computes(on_one_rank, on_two_ranks, helpers):
    for name in (f"open_clip{helpers}", f"open_clip{helpers} resampled"):
        # ceil(105 / 4) batches on one rank; ceil(105 / 8) on each of two, for two epochs.
        assert len(on_one_rank[name]) == 2 * 27
        assert [len(found[name]) for found in on_two_ranks] == [2 * 14] * 2
        halves = [found[name][:14] for found in on_two_ranks]
        assert halves[0] != halves[1]
        assert on_two_ranks[0][name][14:] != halves[0]


def test_open_clip_without_resampling_divides_the_shards(on_two_ranks):
    for name in ("open_clip", "open_clip with helpers"):
        first = Counter(i for found in on_two_ranks for i in flat(found[name][:14]))
        # 112 places for 105 samples; workers with few samples go on with a second pass.
        assert len(first) >= 85
