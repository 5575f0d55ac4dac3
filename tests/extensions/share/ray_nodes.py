"""Workers of Ray Train as nodes, see `node.py`: the argument is its own, with two nodes."""

from __future__ import annotations

import json
import sys

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from tests.extensions.share import node


def main(options: dict) -> None:
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    TorchTrainer(node.main, train_loop_config=options, scaling_config=scaling).fit()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
