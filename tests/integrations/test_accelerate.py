"""Accelerate saves a loader and knows its end and padding; what it was not told of is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.ranks import run_ranks
from tests.support.trainers import OFFLINE, TIMEOUT_S, needs

pytestmark = needs("accelerate")
PROGRAM = Path(__file__).parent / "programs" / "prepared.py"
NUM_SAMPLES, NUM_STEPS = 203, 7


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    out = tmp_path_factory.mktemp("prepared")
    preload = ["accelerate", "datasets"]
    run_ranks(PROGRAM, out, nproc=2, preload=preload, timeout=TIMEOUT_S, env=OFFLINE)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", ["loader", "facade", "stateful"])
def test_each_sample_is_used_once_an_epoch_in_the_one_order(records: list[dict], kind: str) -> None:
    ranks = [record[kind]["whole"][0] for record in records]
    for first in (0, NUM_STEPS):
        steps = [step for rank in ranks for step in rank[first : first + NUM_STEPS]]
        assert sorted(i for step in steps for i in step) == list(range(NUM_SAMPLES))
    assert ranks == [record["loader"]["whole"][0] for record in records]


@pytest.mark.parametrize("kind", ["loader", "facade", "stateful", "batch_sampler"])
def test_a_checkpoint_in_mid_epoch_goes_on_there(records: list[dict], kind: str) -> None:
    for record in records:
        assert record[kind]["parts"] == record[kind]["whole"]


@pytest.mark.parametrize("kind", ["loader", "facade", "stateful", "batch_sampler"])
def test_a_sum_of_gradients_ends_with_the_epoch(records: list[dict], kind: str) -> None:
    steps, synced = records[0][kind]["whole"]
    epoch = len(steps) // 2
    ends = [*range(4, epoch - 1, 5), epoch - 1]
    assert synced == ends + [epoch + end for end in ends]


@pytest.mark.parametrize("remainder", [None, "pad"])
@pytest.mark.parametrize("num_samples", [49, 96, 101])
def test_gathered_rows_are_the_dataset_in_its_order(
    records: list[dict], num_samples: int, remainder: str | None
) -> None:
    for record in records:
        tensors, objects = record["gathered"][f"{num_samples} {remainder}"]
        assert tensors == objects == list(range(num_samples))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plain", "use shardwise.integrations.accelerate.prepare(accelerator, loader)"),
        ("facade alone", "use shardwise.integrations.accelerate.prepare(accelerator, loader)"),
        ("uneven", "6 and 5 rows in the last batch"),
        ("skipped", "without Accelerate's skip_first_batches"),
        ("undivided", "no error"),
    ],
)
def test_what_would_go_wrong_silently_or_hang_is_one_sentence_on_all_ranks(
    records: list[dict], name: str, words: str
) -> None:
    for record in records:
        assert words in record["refused"][name]


@pytest.mark.parametrize("how", ["", ", dispatched", " with workers"])
@pytest.mark.parametrize("part", ["iterable", "batch sampler", "sampler"])
def test_what_would_be_divided_twice_is_one_sentence_on_all_ranks(
    records: list[dict], part: str, how: str
) -> None:
    for record in records:
        said = record["refused"][part + how]
        assert said.startswith("RankError: Accelerate's ")
        assert "give accelerator.prepare a shardwise.torch.StatefulDataLoader around" in said
        assert "through LoaderMixin" in said


def a_sampler_in_a_loader() -> sw.torch.StatefulDataLoader:
    return sw.torch.StatefulDataLoader(range(40), batch_sampler=sw.torch.BatchSampler(40, 4))


@pytest.mark.parametrize("kind", ["facade", "iterable", "sampler"])
def test_a_position_that_was_loaded_is_not_skipped_once_more(kind: str) -> None:
    from accelerate import skip_first_batches

    data = sw.wrap(range(40))
    loader = {
        "facade": lambda: sw.DataLoader(data, batch_size=4).as_torch_dataloader(),
        "iterable": lambda: sw.torch.StatefulDataLoader(
            sw.torch.IterableDataset(data, batch_size=4), batch_size=None
        ),
        "sampler": a_sampler_in_a_loader,
    }[kind]()
    loader.load_state_dict({**loader.state_dict(), "position": 12})
    with pytest.raises(sw.FrameworkError, match="leave Accelerate's skip_first_batches out"):
        skip_first_batches(loader, 3)


def test_batches_of_a_sampler_at_an_epochs_beginning_may_be_skipped() -> None:
    from accelerate import skip_first_batches

    batches = [batch.tolist() for batch in skip_first_batches(a_sampler_in_a_loader(), 8)]
    assert batches == [[32, 33, 34, 35], [36, 37, 38, 39]]


def test_a_version_that_puts_its_own_loader_around_ours_is_refused() -> None:
    import accelerate

    from shardwise.integrations.accelerate import prepare

    class Later(accelerate.Accelerator):
        def prepare_data_loader(self, data_loader, *args, **kwargs):
            return [data_loader]

    with pytest.raises(sw.FrameworkError, match=rf"{accelerate.__version__} has put a loader"):
        prepare(Later(cpu=True), sw.DataLoader(sw.wrap(range(8)), batch_size=2))


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("accelerate.state.GradientState", "_add_dataloader"),
        ("accelerate.state.GradientState", "_remove_dataloader"),
        ("accelerate.Accelerator", "prepare_data_loader"),
        ("accelerate.checkpointing", "save_accelerator_state"),
    ],
)
def test_a_version_without_the_private_names_is_refused(
    owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import accelerate

    from shardwise.integrations.accelerate import prepare

    accelerator = accelerate.Accelerator(cpu=True)
    if name.startswith("_"):
        monkeypatch.delattr(f"{owner}.{name}")
    else:  # it has no such literal in its code
        monkeypatch.setattr(f"{owner}.{name}", lambda *args, **kwargs: None)
    words = rf"accelerate {accelerate.__version__} has no .* tested with 1.15.0"
    with pytest.raises(sw.FrameworkError, match=words):
        prepare(accelerator, sw.DataLoader(sw.wrap(range(8)), batch_size=2))


def test_a_version_that_divides_with_other_classes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import accelerate

    accelerate.Accelerator(cpu=True)
    monkeypatch.delattr("accelerate.data_loader.BatchSamplerShard")
    with pytest.raises(sw.FrameworkError, match=r"has no accelerate.data_loader.BatchSamplerShard"):
        next(iter(sw.torch.BatchSampler(range(8), 2, rank=0, world_size=2)))
