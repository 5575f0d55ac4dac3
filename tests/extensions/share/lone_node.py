"""A node of `nodes.py` as a process; prints the ids of each batch and the state after it.

The argument is JSON: the arguments of `node_loader`, `epochs`, `state` and `stop`: after so many
batches it waits to be killed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.extensions.share.nodes import node_loader


def main(options: dict) -> None:
    epochs, state, stop = options.pop("epochs"), options.pop("state"), options.pop("stop")
    loader = node_loader(**{**options, "folder": Path(options["folder"])})
    if state is not None:
        loader.load_state_dict(state)
    number = 0
    for _ in range(epochs):
        for batch in loader:
            print(json.dumps([batch["__index__"].tolist(), loader.state_dict()]), flush=True)
            number += 1
            if number == stop:
                sys.stdin.read()
    loader.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
