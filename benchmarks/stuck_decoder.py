"""How long after `decode_timeout` the error of a stuck decoder comes.

    python -m benchmarks.stuck_decoder [--timeout 2] [--rounds 20]

50 samples, 2 worker processes; the decoder of one sample writes down when it begins and sleeps for
ever. Prints by how much the error is later than the timeout after that. The aim is 2 s at most.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch  # noqa: F401 - as a training has: the first batch would import it

import shardwise as sw


class Sleeper:
    """Sleeps for ever on one sample, whose begin it writes into a file."""

    def __init__(self, note: Path, stuck: bytes) -> None:
        self.note, self.stuck = note, stuck

    def __call__(self, data: bytes) -> int:
        if data == self.stuck:
            self.note.write_text(str(time.monotonic_ns()))
            threading.Event().wait()
        return int(data)


def late_s(folder: Path, number: int, timeout: float) -> float:
    """Seconds between the timeout's end and the error."""
    note = folder / f"began{number}"
    data = sw.tar(folder / "n.tar").decode(txt=Sleeper(note, b"%d" % (number % 50)))
    loader = sw.DataLoader(
        data, batch_size=10, rank=0, world_size=1, num_workers=2, decode_timeout=timeout
    )
    try:
        for _ in loader:
            pass
    except sw.DecodeTimeoutError:
        return (time.monotonic_ns() - int(note.read_text())) / 1e9 - timeout
    finally:
        loader.close()
    raise RuntimeError("no error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeout", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sw.TarWriter(folder / "n.tar") as writer:
            for number in range(50):
                writer.write({"__key__": f"{number}", "txt": str(number)})
        found = [late_s(folder, number, options.timeout) for number in range(options.rounds)]
    print(
        f"{options.rounds} rounds, decode_timeout={options.timeout:g} s: the error came "
        f"{statistics.median(found):.3f} s later (median), {max(found):.3f} s at most; load "
        f"{os.getloadavg()[0]:.0f}"
    )


if __name__ == "__main__":
    main()
