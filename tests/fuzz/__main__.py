"""Look for input that the library can't take: `python -m tests.fuzz --minutes 30`.

Cases are made by hypothesis. One that fails is made small, kept in tests/fuzz/corpus, and replayed
by the tests from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz import blobs, cases, folders
from tests.fuzz.checks import RawError, check, end_children
from tests.fuzz.damage import Case

CORPUS = Path(__file__).parent / "corpus"
_ROUND = 300
strategies = {**blobs.strategies, **cases.strategies, **folders.strategies}


def main() -> int:
    """The number of targets that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="in all; 10 if not given")
    parser.add_argument("--target", choices=sorted(strategies), action="append")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    targets = options.target or sorted(strategies)
    ends = time.monotonic() + 60 * options.minutes
    print(f"seed {options.seed}, targets {', '.join(targets)}, {options.minutes:g} minutes")
    counts = dict.fromkeys(targets, 0)
    failed = set()
    logging.disable(logging.WARNING)
    number = options.seed
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < ends and len(failed) < len(targets):
            for target in sorted(set(targets) - failed):
                found = search(target, number, Path(folder))
                counts[target] += _ROUND
                if found is not None:
                    failed.add(target)
                    print(f"{target}: {keep(target, found)}")
            number += 1
    end_children()
    print(", ".join(f"{target}: about {count} cases" for target, count in counts.items()))
    return len(failed)


def search(target: str, number: int, folder: Path) -> Case | None:
    """A case that fails, as small as hypothesis can make it; None if none was found."""
    failing: list[Case] = []

    @seed(number)
    @settings(
        max_examples=_ROUND,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(strategies[target]())
    def attempt(case: Case) -> None:
        try:
            check(target, case, folder)
        except RawError:
            failing.append(case)
            raise

    try:
        attempt()
    except Exception:  # noqa: BLE001 - hypothesis may raise several at once
        traceback.print_exc()
        return failing[-1]
    return None


def keep(target: str, case: Case) -> Path:
    name, data = case
    path = CORPUS / target / f"{hashlib.sha256(data).hexdigest()[:12]}-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    sys.exit(main())
