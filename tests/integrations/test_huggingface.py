"""The Trainer's mixin: on two ranks the results of one process; what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardwise as sw
from tests.support.ranks import Run, run_several
from tests.support.trainers import OFFLINE, TIMEOUT_S, needs

pytestmark = needs("transformers")
NUM_SAMPLES = 22
PROGRAM = Path(__file__).parent / "programs" / "evaluated.py"
# Each kind of loss, with one of the sizes; the remainders are all tried.
CASES = [("classes", 49), ("counted", 101), ("squares", 49)]
OTHER_CASES = [("classes", 101), ("counted", 49), ("squares", 101)]
# One run has all cases of a list: the import of transformers costs more than they do.
EACH_CASE = pytest.mark.parametrize(
    ("records", "kind", "num_samples"),
    [
        *((CASES, *case) for case in CASES),
        *(pytest.param(OTHER_CASES, *case, marks=pytest.mark.long) for case in OTHER_CASES),
    ],
    indirect=["records"],
    scope="module",
    ids=lambda value: "cases" if isinstance(value, list) else str(value),
)


class Model(torch.nn.Module):
    """A number for a number; notes the labels that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.got: list[list[int]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.got.append(labels.tolist())
        errors = (self.weight * x - labels)[labels != -100]
        return {"loss": (errors**2).mean(), "logits": self.weight * x}


def loader(batch_size: int = 4, **options: Any) -> sw.DataLoader:
    rows = [{"x": float(i), "labels": i} for i in range(NUM_SAMPLES)]
    options = {"remainder": "pad", "shuffle": "full", **options}
    return sw.DataLoader(sw.wrap(rows), batch_size=batch_size, **options)


def trainer(
    out: Path, train_loader: sw.DataLoader | None, eval_loader: Any = None, **arguments: Any
) -> Any:
    import transformers

    from shardwise.integrations.huggingface import LoaderMixin

    class Trainer(LoaderMixin, transformers.Trainer):
        pass

    options = transformers.TrainingArguments(
        output_dir=str(out),
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_steps=2,
        **{"num_train_epochs": 1, **arguments},
    )
    return Trainer(Model(), options, train_loader=train_loader, eval_loader=eval_loader)


@pytest.fixture(scope="module")
def records(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Results of one process on the Trainer's own loader, and of two ranks on ours."""
    out = tmp_path_factory.mktemp("evaluated")
    cases = [f"{kind}:{num_samples}" for kind, num_samples in request.param]
    run_several(
        Run((PROGRAM, out, "24", *cases), None),
        Run((PROGRAM, out, "12", *cases), 2),
        preload=["transformers.trainer", "deepspeed"],
        timeout=TIMEOUT_S,
        env=OFFLINE,
    )
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in ("alone", 0, 1)]


@pytest.mark.parametrize("remainder", ["pad", "uneven", None])
@EACH_CASE
def test_an_evaluation_on_two_ranks_has_one_processs_results(
    records: list[dict], kind: str, num_samples: int, remainder: str | None
) -> None:
    alone, *ranks = records
    own = alone[f"{kind} {num_samples}"]
    assert own["num_rows"] == own["inputs"] == num_samples
    for rank in ranks:
        found = rank[f"{kind} {num_samples} {remainder}"]
        for name, value in own.items():
            np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


@EACH_CASE
def test_training_on_a_padded_epoch_has_one_processs_losses_and_weights(
    records: list[dict], kind: str, num_samples: int
) -> None:
    # In the last step rank 1 has repeats only: 1 of 24 rows, and 5 of 24, are samples.
    alone, *ranks = (record[f"{kind} {num_samples} trained"] for record in records)
    assert all(loss > 0 for loss in alone[:3])
    for rank in ranks:
        assert rank == pytest.approx(alone, abs=1e-4)


def test_an_evaluation_that_would_leave_samples_out_is_refused(tmp_path: Path) -> None:
    short = loader(remainder="drop", shuffle=False)
    mine = trainer(tmp_path, None)
    with pytest.raises(ValueError, match=r"leaves 2 of 22 samples out .* remainder='pad'"):
        mine.evaluate(short)


def test_an_evaluation_that_would_not_gather_all_ranks_is_refused(tmp_path: Path) -> None:
    half = loader(rank=0, world_size=2, shuffle=False)
    with pytest.raises(ValueError, match=r"gathers from 1 processes, .* has world_size=2"):
        trainer(tmp_path, None).evaluate(half)


@pytest.mark.parametrize("remove_unused_columns", [True, False])
def test_the_model_gets_its_columns_and_no_label_twice(
    tmp_path: Path, remove_unused_columns: bool
) -> None:
    mine = trainer(tmp_path, loader(), remove_unused_columns=remove_unused_columns)
    mine.train()
    labels = [label for batch in mine.model.got for label in batch]
    assert sorted(labels) == list(range(NUM_SAMPLES))


def test_a_plain_loader_in_place_of_the_mixin_is_refused_at_once(tmp_path: Path) -> None:
    import transformers

    class Overriding(transformers.Trainer):
        def get_train_dataloader(self):
            return loader()

    mine = Overriding(Model(), trainer(tmp_path, None).args, train_dataset=loader().dataset)
    with pytest.raises(sw.FrameworkError, match="in Hugging Face's Trainer LoaderMixin"):
        mine.train()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("transformers.trainer_callback", "ExportableState"),
        ("transformers.TrainerState", "stateful_callbacks"),
        ("transformers.trainer", "skip_first_batches"),
    ],
)
def test_a_version_without_the_names_that_are_relied_on_is_refused(
    owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    monkeypatch.delitem(sys.modules, "shardwise.integrations.huggingface", raising=False)
    monkeypatch.delattr(f"{owner}.{name}")
    words = rf"transformers {transformers.__version__} has no .*{name}.* tested with 5.23.0"
    with pytest.raises(sw.FrameworkError, match=words):
        import shardwise.integrations.huggingface  # noqa: F401


def test_a_resumed_epoch_reads_only_what_is_left(tmp_path: Path) -> None:
    mine = trainer(tmp_path, loader())
    mine.train()
    again = trainer(tmp_path, loader())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.model.got == mine.model.got[4:]
    assert again.state.epoch == 1
    assert again._train_loader.stats()["samples"] == 2 * 4


def test_other_global_batches_are_refused_because_the_trainer_counts_steps(tmp_path: Path) -> None:
    trainer(tmp_path, loader(), max_steps=2).train()
    again = trainer(tmp_path, loader(batch_size=2))
    with pytest.raises(sw.StateError, match=r"keep batch_size \* world_size"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_checkpoint_of_another_order_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, loader(), max_steps=2).train()
    again = trainer(tmp_path, loader(seed=1))
    with pytest.raises(sw.StateError, match="seed: the state has 0, this loader 1"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_dict_of_evaluation_loaders_gives_the_metrics_of_each(tmp_path: Path) -> None:
    def rows(*numbers: int) -> sw.DataLoader:
        data = sw.wrap([{"x": float(i), "labels": i + 1} for i in numbers])
        return sw.DataLoader(data, batch_size=2)

    loaders = {"near": rows(0, 1, 2), "far": rows(10, 20, 30, 40, 50)}
    mine = trainer(
        tmp_path, loader(), eval_loader=loaders, eval_strategy="steps", eval_steps=2, max_steps=2
    )
    mine.train()
    logged = {name: each[name] for each in mine.state.log_history for name in each}
    found = mine.evaluate()
    weight = mine.model.weight.item()
    for name, numbers in {"near": (0, 1, 2), "far": (10, 20, 30, 40, 50)}.items():
        expected = np.mean([(weight * i - (i + 1)) ** 2 for i in numbers])
        assert found[f"eval_{name}_loss"] == pytest.approx(expected, rel=1e-4)
        assert logged[f"eval_{name}_loss"] == pytest.approx(expected, rel=1e-4)
    one = mine.evaluate(loaders["near"])
    assert one["eval_loss"] == pytest.approx(found["eval_near_loss"])
    assert len(mine.predict(loaders["far"]).predictions) == 5
