"""Ray's only worker: what `prepare_data_loader` makes of loaders, and the loader as it is.

Argument: the file to write to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_data_loader

import shardwise as sw


def values(batches):
    return [batch["value"].tolist() for batch in batches]


def values_or_error(loader):
    try:
        return values(prepare_data_loader(loader))
    except sw.FrameworkError as error:
        return str(error)


def train(config):
    data = sw.wrap(range(8))
    stateful = sw.torch.StatefulDataLoader(
        sw.torch.IterableDataset(data, batch_size=2), batch_size=None
    )
    record = {
        "plain": values_or_error(sw.DataLoader(data, batch_size=2)),
        "as_torch": values_or_error(sw.DataLoader(data, batch_size=2).as_torch_dataloader()),
        "stateful": values_or_error(stateful),
        "as it is": values(sw.DataLoader(data, batch_size=2, device=get_device())),
    }
    Path(config["out"]).write_text(json.dumps(record))


def main(out):
    # No workers of its own: this process is the one.
    scaling = ScalingConfig(num_workers=0)
    TorchTrainer(train, train_loop_config={"out": out}, scaling_config=scaling).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
