"""Uses every door of the library with secrets in all places, and prints whatever it has.

Arguments: the URL of a web server with `train-000.tar`, `train-001.tar`, `damaged.tar`,
`table.parquet` and `list.jsonl`; a directory to write to; which storage options are taken, such
as "012". Canaries contain the word CANARY.
"""

from __future__ import annotations

import logging
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shardwise as sw

URL, OUT = sys.argv[1], Path(sys.argv[2])
QUERY = "?X-Amz-Signature=QUERYCANARY&X-Amz-Credential=a/QUERYCANARY#FRAGMENTCANARY"
CONFIG = {
    "headers": {"X-Api-Key": "HEADERCANARY", "Authorization": "Basic HEADERCANARY"},
    "user_agent": "AGENTCANARY",
}
STORE = {
    "aws_access_key_id": "KEYCANARY",
    "aws_secret_access_key": "SECRETCANARY",
    "aws_session_token": "TOKENCANARY",
    "aws_endpoint": URL,
    "max_attempts": 1,
}


def show(*values: object) -> None:
    for value in values:
        print(repr(value), str(value), sep="\n")


def attempt(work: Callable[[], Any]) -> None:
    """Show what comes of it: a value, or an error with all that belongs to it."""
    try:
        show(work())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        traceback.print_exc()
        show(error, vars(error), error.__cause__)
        (OUT / f"error-{id(error)}.pickle").write_bytes(pickle.dumps(error))


def use(ds: sw.Dataset, **options: Any) -> None:
    show(ds, ds.source, ds.fingerprint, ds.fields, ds.describe(0), ds.manifest.shards[0])
    with sw.DataLoader(ds, batch_size=3, rank=0, world_size=1, shuffle=True, **options) as loader:
        show(loader, loader.sampler)
        for batch in loader:
            show(batch)
        show(loader.state_dict(), loader.stats(), loader.certificate())


def fail(ds: sw.Dataset, num_workers: int) -> None:
    """Meet an error inside of the data, here and, with `num_workers`, in a worker process."""
    broken = ds.decode(**{ds.fields[0]: lambda data: int(b"no number" + data)})
    attempt(lambda: broken[1])
    for settings in ({"num_workers": 0}, {"num_workers": num_workers}, {"on_error": "skip"}):
        with sw.DataLoader(
            ds.decode(**{ds.fields[0]: int}), batch_size=2, rank=0, world_size=1, **settings
        ) as loader:
            attempt(lambda loader=loader: list(loader))
            attempt(loader.stats)


def main() -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    settings = (None, CONFIG, {"redirects": "none", **CONFIG})
    for number in map(int, sys.argv[3]):
        storage = settings[number]
        shards = [f"{URL}/train-00{i}.tar{QUERY}" for i in range(2)]
        # An index in the user's cache, one in a directory for others, and a cache of blocks.
        ds = sw.tar(shards, storage=storage)
        use(ds)
        # Each worker is an interpreter of its own: where most secrets are.
        num_workers = int(storage is CONFIG)
        fail(ds, num_workers)
        # What is promised of pickles: no settings; the URLs are the data set.
        assert pickle.dumps(ds).count(b"HEADERCANARY") == 0
        ds = sw.tar(shards, index=OUT / f"index-{number}", cache=OUT / "cache", storage=storage)
        use(ds, num_workers=num_workers)
        manifest = f"{URL}/train.swm{QUERY}"
        use(sw.tar(manifest, storage=storage), coverage=OUT / "coverage", num_threads=1)
        attempt(lambda m=manifest, s=storage: sw.tar([m, m], storage=s))
        attempt(lambda m=manifest, s=storage: sw.tar([m, f"{URL}/train-000.tar{QUERY}"], storage=s))
        use(sw.parquet(f"{URL}/table.parquet{QUERY}", storage=storage))
        attempt(lambda storage=storage: sw.files(f"{URL}/list.jsonl{QUERY}", storage=storage)[0])
        names = ("damaged.tar", "gone.tar", "list.jsonl", "train-000.tar.gz", "*.tar", "a//b")
        for name in (*names, "cut.swm", "gone.swm", "*.swm"):
            attempt(lambda name=name, s=storage: sw.tar(f"{URL}/{name}{QUERY}", storage=s)[0])
            attempt(lambda name=name, s=storage: sw.parquet(f"{URL}/{name}{QUERY}", storage=s)[0])
    for wrong in (
        f"{URL}/train-000.tar{QUERY}".replace("://", "://user:PASSWORDCANARY@"),
        f"{URL}/train-000.tar{QUERY}".replace("://", "://user:PASSWORD/CANARY@"),
        "s3://KEYCANARY:SECRETCANARY@bucket/a.tar",
        "ftp://user:PASSWORDCANARY@127.0.0.1:9/a.tar",
        "nothing://user:PASSWORDCANARY@host/a.tar?b=QUERYCANARY",
        f"simplecache::{URL}/train-000.tar{QUERY}",
        f"{URL}/train-000.tar{QUERY}".replace("://", ":/"),
        f"{URL}/{{a,b.tar{QUERY}",
        f"{URL}/{{0..99999999}}.tar{QUERY}",
        f"{URL}/split.json{QUERY}",
    ):
        for door in (sw.tar, sw.parquet, sw.files, sw.lance):
            attempt(lambda door=door, wrong=wrong: door(wrong)[0])
        attempt(lambda wrong=wrong: sw.TarWriter(wrong, max_samples=1).write({"__key__": "a"}))
    attempt(lambda: sw.tar([f"{URL}/a.tar{QUERY}"] * 2))
    options = sw.StorageOptions.of(STORE)
    show(options, options.config, sw.StorageOptions.of(CONFIG))
    attempt(lambda: sw.tar("s3://bucket/a.tar", storage=options)[0])
    attempt(lambda: sw.tar("s3://bucket/*.tar", storage=options)[0])
    for storage in ("SECRETCANARY", {"token": "TOKENCANARY\n"}, {"nonsense": "SECRETCANARY"}):
        attempt(lambda s=storage: sw.tar(f"{URL}/gone.tar", storage=s)[0])
    attempt(lambda: sw.tar("hf://datasets/a/b/c.tar", storage={"endpoint": URL})[0])
    attempt(lambda: sw.tar("hf://datasets/a/b/*.tar", storage={"endpoint": URL})[0])


if __name__ == "__main__":
    main()
