"""Whatever is given to the public names: a result, or an error that was meant.

Meant are the library's own errors, ValueError and TypeError; those of the doors to data also name
the argument.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.compat.video2dataset import get_video_dataset
from tests.support.commands import CliRunner, cli
from tests.support.properties import examples

FOREIGN = Path(__file__).parents[1] / "extensions" / "formats" / "foreign" / "data"
MEANT = (sw.ShardwiseError, ValueError, TypeError)
# Nothing that leads out of the test's directory, or to a server.
TEXTS = st.text(st.characters(exclude_characters="/~"), max_size=8)
HOSTILE = st.one_of(
    st.sampled_from([
        None, True, 0, -1, 1, 7, 2**31, 2**63, 2**64, 10**40, -(2**70), float("nan"), float("inf"),
        "", "\0", "\ud800", "a\0b", "../x", "s3://", "http://", "http://[", "file:///%00",
        "pipe:ls", "nothing://x?y=z", "{", "}", "{a,b", "{" * 3000, "{a,b}" * 40, "[", "*", "**",
        "~nobody/x", "x" * 5000, b"x", [], [None], ["x", "x"], {}, {"a": 1}, {1: 2}, (), set(),
        np.int64(3), np.array([1, 2]), np.array([[1.5]]), np.array(["a"]), np.float32(2), range(3),
        1j, ..., int, len, Exception, object(), iter([]), "rgb", "full", "window",
    ]),
    TEXTS, st.integers(), st.floats(), st.binary(max_size=8), st.lists(TEXTS | st.integers()),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    """Runs in a directory of its own, with data that is sound."""
    folder = tmp_path_factory.mktemp("doors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder))
        with sw.TarWriter("sound.tar", manifest=True) as writer:
            for number in range(7):
                writer.write({"__key__": f"{number}", "cls": number, "txt": "a"})
        pq.write_table(pa.table({"n": [1, 2, 3]}), "sound.parquet")
        np.arange(50, dtype=np.uint16).tofile("sound.bin")
        (folder / "sound.csv").write_text("path,n\nsound.tar,1\n")
        (folder / "sound.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
        for name in ("mds", "litdata", "tfrecord"):
            shutil.copytree(FOREIGN / name, folder / name)
        yield folder


def dataset() -> sw.Dataset:
    return sw.tar("sound.tar").decode(cls=int, txt=str)


def documents() -> sw.Dataset:
    return sw.wrap([{"tokens": np.arange(n)} for n in (3, 0, 5)])


def load(**options: Any) -> None:
    base = {"dataset": dataset(), "batch_size": 2, "rank": 0, "world_size": 1, "num_workers": 0}
    with sw.DataLoader(**(base | options)) as loader:
        next(iter(loader), None)
        assert len(loader) >= 0
        loader.state_dict()


def resume(**state: Any) -> None:
    with sw.DataLoader(dataset(), batch_size=2, rank=0, world_size=1, num_workers=0) as loader:
        whole = state.pop("state", loader.state_dict() | state)
        loader.load_state_dict(whole)
        next(iter(loader), None)


def begin(epoch: Any) -> None:
    with sw.DataLoader(dataset(), batch_size=2, rank=0, world_size=1, num_workers=0) as loader:
        loader.set_epoch(epoch)
        next(iter(loader), None)


def plan(epoch: Any = 0, step: Any = 0, rank: Any = 0, **options: Any) -> None:
    made = sw.Plan(**({"num_samples": 10, "batch_size": 2, "world_size": 2} | options))
    made.indices(epoch, step, rank)


def mixed(**options: Any) -> sw.Dataset:
    data = sw.mix(**({"datasets": {"a": (dataset(), 1)}, "until": 8} | options))
    with sw.DataLoader(data, batch_size=2, rank=0, world_size=1, num_workers=0) as loader:
        next(iter(loader), None)
        loader.state_dict()
    return data


def resume_mixed(**state: Any) -> None:
    data = sw.mix({"a": (dataset(), 1)})
    with sw.DataLoader(data, batch_size=2, rank=0, world_size=1, num_workers=0) as loader:
        loader.load_state_dict(loader.state_dict() | state)
        next(iter(loader), None)


def bucketed(**options: Any) -> None:
    base = {"lengths": [1, 2, 3, 4, 5, 6, 7]}
    load(batch_by=sw.buckets(**(base | options)), batch_size=64, remainder="uneven")


def videos(**options: Any) -> None:
    base = {"urls": "sound.tar", "batch_size": 2, "decoder_kwargs": {"n_frames": 2}}
    get_video_dataset(**(base | options))


def weighted(**options: Any) -> None:
    sampler = sw.WeightedSampler(**({"weights": [1, 2, 3, 4, 5, 6, 7]} | options))
    load(sampler=sampler)


def write(sample: Any = None, **options: Any) -> None:
    # Closing it is part of it: the index is made there.
    fields = {name: options.pop(name) for name in FIELDS if name in options}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        base = {"pattern": f"{folder}/out-{{shard}}.tar"}
        with sw.TarWriter(**(base | options)) as writer:
            writer.write({"__key__": "a", "cls": 1, **fields} if sample is None else sample)


def built(**options: Any) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        base = {"source": [{"cls": 1}], "pattern": f"{folder}/{{shard}}.tar", "num_workers": 0}
        sw.build(**(base | options))


FIELDS = ("__key__", "cls", "json", "txt", "npy", "jpg", "bin", "a/b", "")


def first(make: Callable[..., sw.Dataset], **base: Any) -> Callable[..., None]:
    def door(**options: Any) -> None:
        found = make(**(base | options))
        if len(found):
            found[0]

    return door


def of(function: Any, *left_out: str) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in left_out]


# What is called, with which arguments, and whether an error names the argument.
DOORS: dict[str, tuple[Callable[..., Any], list[str], bool]] = {
    "tar": (first(sw.tar, urls="sound.tar"), of(sw.tar), True),
    "manifest": (first(sw.tar, urls="sound.swm"), of(sw.tar, "urls"), True),
    "parquet": (first(sw.parquet, urls="sound.parquet"), ["urls", "cache", "storage"], True),
    "jsonl": (first(sw.jsonl, urls="sound.jsonl"), of(sw.jsonl, "memory_bytes"), True),
    "mds": (first(sw.mds, urls="mds"), of(sw.mds, "memory_bytes"), True),
    "litdata": (first(sw.litdata, url="litdata"), of(sw.litdata, "memory_bytes"), True),
    "tfrecord": (first(sw.tfrecord, urls="tfrecord"), of(sw.tfrecord), True),
    "files": (first(sw.files, root_or_manifest="sound.csv"), of(sw.files), True),
    "TarWriter": (write, of(sw.TarWriter, "index", "digests", "media", "overwrite"), True),
    "build": (built, of(sw.build, "source", "num_workers", "retry_errors"), False),
    "fetch": (lambda **o: sw.fetch(**o)({}), of(sw.fetch), True),
    "fetched": (lambda url: sw.fetch(retries=0, timeout_s=2)({"url": url}), ["url"], False),
    "source": (lambda source: built(source=source), ["source"], False),
    "show": (lambda **o: sw.show(**({"value": dataset()} | o)), of(sw.show), False),
    "CacheSettings": (lambda **o: sw.CacheSettings(**({"directory": "c"} | o)),
                      of(sw.CacheSettings, "_"), True),
    "StorageOptions": (sw.StorageOptions, of(sw.StorageOptions, "hedge"), True),
    "storage": (lambda storage: sw.tar("sound.tar", storage=storage), ["storage"], True),
    "lance": (sw.lance, ["uri"], False),
    "tokens": (first(sw.tokens, urls="sound.bin", dtype="uint16", block=4), of(sw.tokens), False),
    "pack": (lambda **o: list(sw.pack(**({"dataset": documents(), "length": 4} | o))),
             of(sw.pack, "progress"), False),
    "join": (lambda **o: len(sw.join(**({"left": dataset(), "right": dataset().select()} | o))),
             of(sw.join), False),
    "windows": (lambda **o: list(sw.windows(**({"dataset": dataset(), "by": "cls", "fps": 1,
                                                "deltas": {"cls": [0, 1]}} | o))),
                of(sw.windows), False),
    "deltas": (lambda seconds: list(sw.windows(dataset(), by="cls", deltas={"cls": seconds},
                                               fps=1)), ["seconds"], False),
    "lerobot": (sw.lerobot, ["root", "size", "cache", "storage"], False),
    "column": (lambda **o: dataset().column(**({"name": "cls"} | o)), ["name", "fn"], False),
    "columns": (lambda columns: dataset().filter(lambda _: np.ones(7, bool), columns=columns),
                ["columns"], False),
    "wrap": (lambda dataset: sw.wrap(dataset)[0], ["dataset"], False),
    "DataLoader": (load, of(sw.DataLoader, "dataset", "num_workers", "num_threads"), False),
    "resume": (resume, ["state", "version", "epoch", "position", "fingerprint", "num_samples",
                        "order"], False),
    "set_epoch": (begin, ["epoch"], False),
    "trace": (lambda path: list(sw.trace(sw.DataLoader(dataset(), rank=0, world_size=1), path)),
              ["path"], False),
    "Plan": (plan, [*of(sw.Plan, "sampler"), "epoch", "step", "rank"], False),
    "buckets": (bucketed, of(sw.buckets), False),
    "get_video_dataset": (videos, of(get_video_dataset, "handler", "allowed_languages"), False),
    "WeightedSampler": (weighted, of(sw.WeightedSampler), False),
    "balanced": (sw.WeightedSampler.balanced, ["labels"], False),
    "pad": (lambda **o: sw.pad(**o)([{"x": np.arange(3)}, {"x": np.arange(1)}]), of(sw.pad), False),
    "write": (write, ["sample", *FIELDS], False),
    "select": (lambda name: dataset().select(name), ["name"], False),
    "subset": (lambda ids: dataset().subset(ids), ["ids"], False),
    "decode": (lambda decoder: dataset().decode(cls=decoder)[0], ["decoder"], False),
    "mix": (mixed, of(sw.mix, "datasets"), False),
    "parts": (sw.mix, ["datasets"], False),
    "weight": (lambda weight: sw.mix({"a": (dataset(), weight)}), ["weight"], False),
    "weights": (lambda weights: mixed(schedule=[(0, {"a": 1}), (5, weights)]), ["weights"],
                False),
    "position": (lambda at: mixed(schedule=[(0, {"a": 1}), (at, {"a": 1})]), ["at"], False),
    "resume_mixed": (resume_mixed, ["epoch", "position", "num_samples", "order"], False),
    "service": (lambda **o: sw.service(**({"addresses": "tcp://127.0.0.1:9"} | o)), of(sw.service),
                True),
    "map": (lambda fn: dataset().map(fn)[0], ["fn"], False),
    "index": (lambda index: dataset()[index], ["index"], False),
    "image": (lambda **o: sw.image(**o)(b"no picture"), of(sw.image), False),
    "image(crop)": (lambda **o: sw.image(**({"size": 8, "crop": "random"} | o)),
                    of(sw.image, "crop"), False),
    "video": (lambda **o: sw.video(**o)(b"no video"), of(sw.video), False),
    "audio": (lambda **o: sw.audio(**o)(b"no sound"), of(sw.audio), False),
    "clips": (lambda **o: sw.wrap([{"mp4": b"no video"}]).clips(**({"field": "mp4"} | o)),
              of(sw.Dataset.clips, "self"), False),
    "segments": (lambda **o: sw.wrap([{"wav": b"no sound", "offset": 0.0, "duration": 1.0}])
                 .segments(**({"field": "wav"} | o)), of(sw.Dataset.segments, "self"), False),
    "media": (lambda **o: sw.media(**o)(b"no media").info, of(sw.media), False),
    "array": (lambda **o: sw.array(**({"dtype": "u1"} | o))(b"abcd"), of(sw.array), False),
}  # fmt: skip
CALLS = [(door, argument) for door, (_, names, _) in DOORS.items() for argument in names]


@settings(max_examples=examples(500), suppress_health_check=list(HealthCheck))
@given(st.sampled_from(CALLS), HOSTILE)
@example(("tar", "index"), "s3://")
@example(("tar", "index"), "http://[")
@example(("files", "root"), "http://[")
@example(("buckets", "batch_size"), 2**62)
@example(("WeightedSampler", "num_samples"), 2**64)
@example(("DataLoader", "epoch_size"), 2**64)
@example(("tar", "index"), "file:///%00")
def test_a_hostile_argument_is_an_error_that_was_meant(call, value):
    name, argument = call
    function, _, is_named = DOORS[name]
    what = f"{name}({argument}={value!r:.60})"
    # Of an index, IndexError is what Python expects.
    meant = (*MEANT, IndexError) if name in ("index", "subset", "wrap") else MEANT
    told = ""
    try:
        function(**{argument: value})
    except sw.ShardwiseError:
        pass
    except meant as error:
        told = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    known = [argument, argument.rstrip("s"), "url", "directory", "path", repr(value)[1:40]]
    known += map(repr, value) if isinstance(value, list) else []
    if told and is_named and not any(each in told for each in known):
        raise AssertionError(f"{what} names no argument: {told}")


COMMANDS = (
    "index",
    "info",
    "plan",
    "verify",
    "doctor",
    "bench",
    "cache",
    "certify",
    "watch",
    "report",
    "serve",
    "nothing",
)
OPTIONS = ("--json", "--index", "--batch-size", "--world-size", "--num-samples", "--shuffle", "-h",
           "--max-batches", "--seed", "--epoch", "--clean", "--digests", "--decode")  # fmt: skip
WORDS = st.one_of(
    st.sampled_from(["sound.tar", "sound.csv", "", "none.tar", "{", "*", "s3://", "http://", "-1",
                     "1", "1e9", "99999999999999999999", "\ud800", "a\nb", "\x1b[31m", "x" * 5000]),
    st.text(st.characters(exclude_characters="/~\0-"), max_size=5),
)  # fmt: skip


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(st.sampled_from(COMMANDS), st.lists(st.sampled_from(OPTIONS) | WORDS, max_size=4))
@example("index", ["--index", "\ud800"])
@example("verify", ["--index", "s3://", "sound.tar"])
@example("cache", ["\ud800"])
def test_a_command_ends_with_a_message_and_a_code(command, words):
    # A benchmark of a minute is none of what is tested here.
    assume(command != "bench" or "sound.tar" not in words)
    done = CliRunner().invoke(cli, [command, *words], prog_name="shardwise")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"shardwise {command} {words}") from done.exception
    assert done.exit_code in (0, 1, 2)
    assert "Traceback" not in done.output
    assert done.exit_code == 0 or done.output
