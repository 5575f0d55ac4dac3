"""The verdict: pure on numbers, and right about stages that are really slow."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise import DataLoader
from shardwise.dataset import Dataset
from shardwise.engine.request import Concurrency
from shardwise.engine.stats.bottleneck import find_bottleneck, wanted_servers
from tests.engine.processes.test_executor import said_by
from tests.support.memory_source import MemorySource, numbered_samples

THREADS = Concurrency("threads", num_threads=2, num_prefetch=4)
PROCESSES = Concurrency("processes", num_workers=3, num_threads=1, num_prefetch=6)
INLINE = Concurrency("inline")
DOING = {
    "read": "reading",
    "demux": "demuxing",
    "decode": "decoding",
    "convert": "converting",
    "transform": "transforming",
}


def judge(
    hands=THREADS,
    num_cores=2,
    wait_s=9.5,
    cpu_s=18.0,
    requests=0,
    hits=0,
    num_bytes=10**8,
    outage_s=0.0,
    pin_memory=False,
    **seconds,
):
    """The verdict on ten seconds in which 20 seconds of two threads were to be had."""
    seconds = {name.replace("_", " "): value for name, value in seconds.items()}
    stats = {"batches": 50, "samples": 5000, "bytes": num_bytes, "wall_s": 10.0}
    stats |= {"requests": requests, "hits": hits, "misses": 0, "outage_s": outage_s}
    stats |= {"wait_s": wait_s, "cpu_s": cpu_s, "seconds": seconds}
    return find_bottleneck(stats, concurrency=hands, num_cores=num_cores, pin_memory=pin_memory)


def test_a_store_that_did_not_answer_is_named_before_all_stages():
    found = judge(read=19.0, outage_s=6.0)
    assert found.bound_by == "read"
    assert found.text.startswith("store-bound: a store did not answer for 6 s of 10 s")
    assert judge(decode=19.0, outage_s=0.1).bound_by == "decode"


@pytest.mark.parametrize("stage", DOING)
def test_the_largest_stage_of_busy_hands_is_named(stage):
    others = [other for other in DOING if other != stage][:2]
    found = judge(**{**dict.fromkeys(others, 1.0), stage: 17.0})
    assert found.bound_by == stage
    assert found.text.startswith(f"{stage}-bound: 2 threads busy 95 % of the time, 89 % of it")
    assert f"{DOING[stage]};" in found.text
    assert "\n" not in found.text


def test_time_of_the_callers_thread_is_weighed_against_that_of_the_hands():
    # Eight seconds of one thread limit more than ten of two.
    assert judge(decode=10.0, collate=8.0).bound_by == "collate"
    assert judge(decode=17.0, collate=8.0).bound_by == "decode"
    assert judge(wait_s=1.0, decode=10.0, hand_over=8.0).bound_by == "hand over"


def test_where_the_hands_collate_it_is_their_time():
    theirs = Concurrency("processes", num_workers=3, num_threads=1, num_prefetch=6, collate=True)
    assert judge(PROCESSES, decode=20.0, collate=9.0).bound_by == "collate"
    assert judge(theirs, decode=20.0, collate=9.0).bound_by == "decode"


def test_a_loader_that_waits_for_its_consumer_is_enough():
    found = judge(wait_s=0.3, decode=19.0)
    assert found.bound_by == "trainer"
    assert "waited for the consumer 97 % of the time" in found.text


def test_a_device_that_decodes_for_most_of_the_time_is_named():
    found = judge(decode=2.0, device_decode=18.0)
    assert found.bound_by == "device decode"
    assert found.text.startswith("device-bound: its 2 threads busy 90 % of the time")
    assert judge(decode=19.0, device_decode=8.0).bound_by == "decode"


def test_no_stage_is_blamed_where_none_is_busy():
    found = judge(decode=2.0, collate=1.0)
    assert found.bound_by == "overhead"
    assert "batch_size" in found.text


def test_less_than_two_batches_are_too_little():
    stats = {"batches": 1, "bytes": 1, "wall_s": 1.0, "wait_s": 1.0, "cpu_s": 0.0}
    found = find_bottleneck({**stats, "seconds": {"read": 9.0}}, concurrency=INLINE, num_cores=1)
    assert found.bound_by == "nothing"


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"decode": 19.0}, "more cores would help"),
        ({"decode": 19.0, "num_cores": 8}, "more num_threads would help: there are 8 cores"),
        ({"decode": 19.0, "cpu_s": 5.0}, "only 26 % of that time"),
        ({"decode": 29.0, "hands": PROCESSES, "num_cores": 8}, "more num_workers"),
        ({"transform": 19.0, "num_cores": 8}, "num_workers=8 would help"),
        ({"transform": 29.0, "hands": PROCESSES, "num_cores": 3}, "more cores would help"),
        ({"read": 19.0, "cpu_s": 5.0}, "10.0 MB/s came in"),
        ({"read": 19.0, "cpu_s": 5.0, "requests": 4900}, "4,900 requests brought 5,000 samples"),
        ({"read": 19.0, "cpu_s": 5.0, "requests": 4900, "hits": 9}, "10.0 MB/s came in"),
        ({"read": 19.0, "cpu_s": 5.0, "requests": 300}, "10.0 MB/s came in"),
        ({"read": 19.0, "cpu_s": 18.0}, "they hardly wait for storage"),
        ({"read": 19.0, "num_bytes": 0, "num_cores": 8}, "num_workers=8 would help where these"),
        ({"read": 29.0, "num_bytes": 0, "hands": PROCESSES}, "0.0 MB/s came in"),
        ({"decode": 9.0, "hands": INLINE}, "nothing is made ahead"),
        ({"collate": 9.0}, "num_workers"),
        ({"hand_over": 9.0, "pin_memory": True}, "pin_memory copies each batch here"),
        ({"hand_over": 9.0}, "copies only what torch can't share"),
    ],
)
def test_the_advice_fits_the_loader(given, advice):
    assert advice in judge(**given).text


def test_more_seconds_than_there_were_are_no_more_than_all():
    # Batches that were begun before the counting bring all of their seconds.
    assert "busy 100 % of the time" in judge(decode=25.0).text


# Real loaders, with something slow in them: at least twenty times as slow as all the rest.

SLOW_S = 0.05


class SlowSource(MemorySource):
    def read(self, ids, fields=None):
        if len(ids):
            time.sleep(SLOW_S)
        return super().read(ids, fields)


def slow_value(data):
    time.sleep(SLOW_S / 16)
    return int(data)


def slow_sample(sample):
    time.sleep(SLOW_S / 16)
    return sample


def slow_collate(samples):
    time.sleep(SLOW_S)
    return {"cls": np.array([int(s["cls"]) for s in samples])}


def slow_loader(stage, **options):
    kind = SlowSource if stage == "read" else MemorySource
    data = Dataset(kind(numbered_samples(160))).select("cls")
    data = data.decode(cls=slow_value if stage == "decode" else int)
    if stage == "transform":
        data = data.map(slow_sample)
    collate = slow_collate if stage == "collate" else None
    given = {"batch_size": 16, "rank": 0, "world_size": 1, "output": "numpy", "collate": collate}
    return DataLoader(data, **given, **options)


@pytest.mark.parametrize("stage", ["read", "decode", "transform", "collate"])
@pytest.mark.parametrize(
    "options",
    [{"num_threads": 2}, {"num_threads": 0}, {"num_workers": 1}],
    ids=["threads", "inline", "processes"],
)
def test_the_stage_that_is_slow_is_named(stage, options):
    with slow_loader(stage, **options) as loader:
        batches = iter(loader)
        next(batches)
        loader.stats(reset=True)
        assert len(list(batches)) == 9
        assert loader.stats()["bound_by"] == stage


def test_a_slow_consumer_is_named():
    with slow_loader(None, num_threads=2) as loader:
        batches = iter(loader)
        next(batches)
        loader.stats(reset=True)
        for _ in range(4):
            time.sleep(5 * SLOW_S)
            next(batches)
        batches.close()
        assert loader.stats()["bound_by"] == "trainer"


def test_the_import_of_torch_is_in_no_stage_of_a_program_that_does_not_import_it_itself(tmp_path):
    program = """
    import sys, time
    import shardwise as sw
    clock = time.perf_counter
    # A thousand seconds pass when torch is imported.
    time.perf_counter = lambda: clock() + 1000 * ("torch" in sys.modules)
    loader = sw.DataLoader(
        sw.wrap(range(90)), batch_size=15, rank=0, world_size=1, num_threads=1
    )
    assert "torch" not in sys.modules
    assert sum(len(batch["value"]) for batch in loader) == 90
    assert "torch" in sys.modules
    stats = loader.stats()
    assert stats["seconds"]["hand over"] < 500 and stats["wall_s"] < 500, stats
    assert stats["bound_by"] != "hand over" and "pin_memory" not in stats["verdict"], stats
    """
    code, _, err = said_by(program, tmp_path)
    assert code == 0, err


@pytest.mark.parametrize(
    ("bound_by", "wait_s", "num_servers", "wanted"),
    [
        ("transform", 0.0, 4, 4), ("read", 2.0, 4, 5), ("collate", 5.0, 2, 4), ("read", 6.0, 2, 5),
        ("decode", 7.5, 3, 12), ("decode", 9.9, 3, 12), ("decode", 10.0, 3, 12),
        ("trainer", 0.5, 4, 4), ("hand over", 9.0, 4, 4), ("nothing", 0.0, 4, 4),
    ],
)  # fmt: skip
def test_servers_are_wanted_by_the_share_that_the_trainer_waits(
    bound_by, wait_s, num_servers, wanted
):
    stats = {"bound_by": bound_by, "wait_s": wait_s, "wall_s": 10.0}
    assert wanted_servers(stats, num_servers) == wanted


@given(st.integers(0, 750), st.integers(1, 1000))
@example(687, 939)
def test_the_fewest_servers_are_wanted_that_keep_up(permille, num_servers):
    stats = {"bound_by": "decode", "wait_s": float(permille), "wall_s": 1000.0}
    wanted = wanted_servers(stats, num_servers)
    used = 1000 - permille
    assert wanted * used >= num_servers * 1000
    assert (wanted - 1) * used < num_servers * 1000
