"""Ray Train: the plain loader in each worker, its state in the reported checkpoint.

With --stop-after, the workers fail after that step; Ray starts new ones, which go on from there.
`ray.train.torch.prepare_data_loader` is not for it: the loader has divided the data already.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train as ray_train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from examples.trainers.parts import NUM_EPOCHS, Ledger, loss_of, network, run, train_loader


def train_on_worker(config: dict[str, Any]) -> None:
    """What each of Ray's workers does."""
    directory = Path(config["directory"])
    loader = train_loader(directory)
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint = ray_train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    parallel = prepare_model(model)
    ledger = Ledger(directory, loader.rank)

    step = 0
    while loader.epoch < NUM_EPOCHS:
        for batch in loader:
            loss = loss_of(parallel, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            ledger.add_batch(loader.epoch, batch, loss)
            if step == config["stop_after"] and checkpoint is None:
                # On every rank: each writes down what it has handed out up to here.
                position = loader.state_dict()
                with tempfile.TemporaryDirectory() as folder:
                    saved = None
                    if loader.rank == 0:
                        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        state["loader"] = position
                        torch.save(state, Path(folder) / "state.pt")
                        saved = ray_train.Checkpoint(folder)
                    ray_train.report({"step": step}, checkpoint=saved)
                raise RuntimeError(f"stopped after step {step}")


def train(directory: Path, *, stop_after: int | None = None) -> None:
    """Train with two workers on this machine; they are started anew once, if they fail."""
    trainer = TorchTrainer(
        train_on_worker,
        train_loop_config={"directory": str(directory), "stop_after": stop_after},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray_train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=ray_train.RunConfig(
            storage_path=str(directory / "ray"),
            failure_config=ray_train.FailureConfig(max_failures=1),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    run(train)
    ray.shutdown()
