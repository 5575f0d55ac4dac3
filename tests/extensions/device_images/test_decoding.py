"""Images decoded on a device: the same rows, order, errors and state, by a decoder on the CPU."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import shardwise as sw
from shardwise.engine.request import Batch
from shardwise.extensions.device_images import decoding as device_images
from shardwise.extensions.device_images.decoding import DeviceImages, NvJpegDecoder, find_decoder
from shardwise.extensions.device_images.packing import DeviceShare
from tests.codecs.samples import encode, oriented, picture
from tests.support.device_images import StandIn, damaged, jpeg
from tests.support.forks import in_child
from tests.support.memory_source import MemorySource

FILES = [jpeg(number, subsampling=number % 3) for number in range(20)]
INLINE, THREADS, PROCESSES = {"num_threads": 0}, {"num_threads": 3}, {"num_workers": 1}
EXECUTORS = pytest.mark.parametrize(
    "executor", [INLINE, THREADS, PROCESSES], ids=["inline", "threads", "processes"]
)


@pytest.fixture
def stand_in(monkeypatch):
    decoder = StandIn()
    monkeypatch.setattr(device_images, "find_decoder", lambda device: decoder)
    return decoder


def dataset(files=FILES):
    samples = [
        {"__key__": f"{i:02d}", "jpg": data, "cls": str(i).encode()} for i, data in enumerate(files)
    ]
    return sw.Dataset(MemorySource(samples)).decode(cls=int)


def loader(files=FILES, *, decode_on="device", data=None, options=None, **arguments):
    image = sw.image(**{"size": 24, "decode_on": decode_on, **(options or {})})
    data = (dataset(files) if data is None else data).decode(jpg=image)
    device = None if decode_on == "cpu" else "cpu"
    given = {"batch_size": 8, "rank": 0, "world_size": 1, "num_threads": 2, "device": device}
    return sw.DataLoader(data, **{**given, **arguments})


def assert_near(there, here, *, most=1.5):
    """Batches of the same samples, whose images differ by `most` levels on average."""
    assert len(there) == len(here)
    for one, other in zip(there, here, strict=True):
        assert set(one) == set(other)
        for name in set(one) - {"jpg"}:
            assert list(one[name]) == list(other[name])
        assert (one["jpg"].shape, one["jpg"].dtype) == (other["jpg"].shape, other["jpg"].dtype)
        off = (one["jpg"].float() - other["jpg"].float()).abs()
        assert off.numel() == 0 or off.mean() < most


# Rows and order.


@EXECUTORS
def test_rows_crops_and_flips_are_the_cpus(stand_in, executor):
    arguments = {"options": {"crop": "random"}, "shuffle": "full", "seed": 3, **executor}
    with loader(**arguments) as there, loader(decode_on="cpu", **arguments) as here:
        for _ in range(2):
            # Both decode at the full size: the crops are equal but for rounding.
            assert_near(list(there), list(here), most=0.5)
        counts = there.stats()
        assert (counts["decoded_on_device"], counts["decoded_on_cpu"]) == (32, 0)
        assert counts["seconds"]["device decode"] > 0


def test_executors_agree_bit_by_bit(stand_in):
    arguments = {"options": {"crop": "random"}, "shuffle": "full"}
    for one, other in zip(
        loader(**arguments, **INLINE), loader(**arguments, **THREADS), strict=True
    ):
        assert torch.equal(one["jpg"], other["jpg"])


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "HWC"},
        {"dtype": "float32"},
        {"mode": "gray"},
        {"fit": "crop", "interpolation": "bicubic"},
        {"layout": "HWC", "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)},
        {"mode": "gray", "layout": "channels_last", "mean": 0.5, "std": 0.5},
    ],
)
def test_layouts_dtypes_and_modes_are_the_cpus(stand_in, options):
    assert_near(list(loader(options=options)), list(loader(decode_on="cpu", options=options)))


@pytest.mark.parametrize("executor", [INLINE, THREADS], ids=["inline", "threads"])
def test_a_loader_resumed_from_its_state_goes_on_behind_the_last_batch(stand_in, executor):
    arguments = {"options": {"crop": "random"}, "shuffle": "full", "batch_size": 4, **executor}
    with loader(**arguments) as whole, loader(decode_on="cpu", **arguments) as here:
        batches = []
        for batch, _ in zip(whole, here, strict=True):
            batches.append(batch)
            assert whole.state_dict() == here.state_dict(), "a batch decoded ahead was counted"
            if len(batches) == 2:
                state = json.loads(json.dumps(whole.state_dict()))
    with loader(**arguments) as second:
        second.load_state_dict(state)
        rest = list(second)
    assert [b["__key__"] for b in rest] == [b["__key__"] for b in batches[2:]]
    assert all(torch.equal(a["jpg"], b["jpg"]) for a, b in zip(rest, batches[2:], strict=True))


def test_padded_and_coalesced_rows_and_tuples_are_the_cpus(stand_in):
    arguments = {"remainder": "pad", "as_tuple": ("jpg", "cls", "__valid__")}
    there, here = list(loader(**arguments)), list(loader(decode_on="cpu", **arguments))
    assert [b[1].tolist() for b in there] == [b[1].tolist() for b in here]
    assert [b[2].tolist() for b in there] == [b[2].tolist() for b in here]
    assert there[-1][0].shape == here[-1][0].shape


def test_datasets_of_a_mixture_are_decoded_on_the_device(stand_in):
    def mixed(decode_on):
        image = sw.image(size=16, crop="random", decode_on=decode_on)
        parts = {name: (dataset().decode(jpg=image), 1.0) for name in ("a", "b")}
        device = None if decode_on == "cpu" else "cpu"
        return sw.DataLoader(sw.mix(parts), 8, rank=0, world_size=1, device=device)

    assert_near(list(mixed("device")), list(mixed("cpu")), most=0.5)


def test_a_pickled_loader_decodes_on_the_device(stand_in):
    first = loader()
    next(iter(first))
    second = pickle.loads(pickle.dumps(first))
    assert [b["jpg"].shape[0] for b in second] == [8, 4]
    assert second.stats()["decoded_on_device"] == 20  # with the first loader's 8


# What the device can't do.


@pytest.mark.parametrize("executor", [INLINE, THREADS], ids=["inline", "threads"])
def test_files_that_the_device_cannot_do_are_the_cpus_bit_by_bit_and_counted(stand_in, executor):
    from PIL import Image

    cmyk = encode(Image.fromarray(picture()).convert("CMYK"), "JPEG")
    as_rgb = encode(picture(), "JPEG", keep_rgb=True)
    odd = [encode(picture(), "PNG"), cmyk, as_rgb, oriented("JPEG", 6, picture())]
    files = [*FILES[:3], *odd, FILES[9]]
    options = {"orient": True, "crop": "random"}
    with loader(files, options=options, batch_size=8, **executor) as there:
        [one] = list(there)
        counts = there.stats()
    [other] = list(loader(files, decode_on="cpu", options=options, batch_size=8))
    assert torch.equal(one["jpg"][3:7], other["jpg"][3:7])
    assert_near([one], [other], most=0.5)
    assert (counts["decoded_on_device"], counts["decoded_on_cpu"]) == (4, 4)


def test_a_file_that_the_device_fails_at_is_decoded_on_the_cpu(stand_in):
    stand_in.refused = {len(FILES[4])}
    there = loader(options={"crop": "random"})
    batches = list(there)
    here = list(loader(decode_on="cpu", options={"crop": "random"}))
    assert torch.equal(batches[0]["jpg"][4], here[0]["jpg"][4])
    counts = there.stats()
    assert (counts["decoded_on_device"], counts["decoded_on_cpu"]) == (19, 1)


def test_nvjpeg_decodes_one_by_one_where_a_list_fails_and_says_so_once(caplog):
    calls = []

    def decode(files, mode):
        calls.append((len(files), mode))
        if any(len(file) == 3 for file in files):
            raise RuntimeError("unsupported subsampling")
        return [torch.zeros(3, 1, 1) for _ in files]

    decoder = NvJpegDecoder(decode)
    files = [torch.zeros(n, dtype=torch.uint8) for n in (2, 3, 4)]
    with caplog.at_level(logging.WARNING, "shardwise"):
        for _ in range(2):
            assert [found is None for found in decoder.decode(files, "rgb")] == [False, True, False]
    assert calls == 2 * [(3, "RGB"), (1, "RGB"), (1, "RGB"), (1, "RGB")]
    [record] = caplog.records
    assert "unsupported subsampling" in record.getMessage()


@pytest.mark.parametrize("package", ["torchvision.io", "torchcodec.decoders"])
def test_torchvision_is_asked_for_a_list_and_torchcodec_for_each_file(monkeypatch, package):
    calls = []

    def decode_jpeg(files, mode, device):
        calls.append((type(files), mode, str(device)))
        pixels = torch.zeros(3, 1, 1)
        return [pixels for _ in files] if isinstance(files, list) else pixels

    def import_module(name):
        if name != package:
            raise ImportError(name)
        return SimpleNamespace(decode_jpeg=decode_jpeg, ImageReadMode={"RGB": "its RGB"})

    monkeypatch.setattr("importlib.import_module", import_module)
    decoder = find_decoder(torch.device("cuda", 1))
    assert len(decoder.decode([torch.zeros(2, dtype=torch.uint8)] * 2, "rgb")) == 2
    if package == "torchvision.io":
        assert calls == [(list, "its RGB", "cuda:1")]
    else:
        assert calls == [(torch.Tensor, "RGB", "cuda:1")] * 2


def test_a_device_without_memory_is_an_error_and_no_damaged_file():
    def decode(files, mode):
        raise torch.cuda.OutOfMemoryError("no memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        NvJpegDecoder(decode).decode([torch.zeros(3, dtype=torch.uint8)] * 2, "rgb")


# Damage.


BAD = {
    "no image": b"no image",
    "cut": FILES[5][: len(FILES[5]) // 2],
    "codes": damaged(FILES[5]),
}


@pytest.mark.parametrize("executor", [INLINE, THREADS], ids=["inline", "threads"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_damage_is_raised_with_url_key_and_field(stand_in, executor, bad):
    files = [*FILES[:10], bad, *FILES[11:]]
    given = []
    with loader(files, **executor) as there, pytest.raises(sw.DataError) as caught:
        given.extend(batch["__key__"] for batch in there)
    assert given == [[f"{i:02d}" for i in range(8)]], "the batch before it is whole"
    error = caught.value
    assert (error.url, error.key, error.field, error.index) == (
        "memory://set/000.mem",
        "10",
        "jpg",
        10,
    )


@pytest.mark.parametrize(
    ("on_error", "executor"),
    [("skip", THREADS), ("replace", THREADS), ("replace", PROCESSES)],
    ids=["skip", "replace", "replace, processes"],
)
def test_damaged_rows_are_skipped_or_replaced_as_on_the_cpu(stand_in, on_error, executor):
    files = list(FILES)
    files[2], files[10], files[11] = BAD.values()
    arguments = {"on_error": on_error, "shuffle": "full", **executor}
    with loader(files, **arguments) as there, loader(files, decode_on="cpu", **arguments) as here:
        assert_near(list(there), list(here))
        counts = [{k: x.stats()[k] for k in ("skipped", "replaced")} for x in (there, here)]
        assert counts[0] == counts[1]
        assert sum(counts[0].values()) == 3
        assert there.certificate() == here.certificate()


def test_a_batch_without_a_row_has_the_shape_of_the_others(stand_in):
    files = [b"no image"] * 3 + [FILES[0]]
    batch, _ = list(loader(files, on_error="skip", batch_size=3))
    assert (batch["jpg"].shape, batch["jpg"].dtype) == ((0, 3, 24, 24), torch.uint8)


# Threads.


def stage(decode=None):
    return DeviceImages(torch.device("cpu"), {}, rebuild=lambda request: None)


def test_a_ready_batch_is_not_held_back(stand_in):
    may_go_on = threading.Event()

    def made():
        yield Batch({}, num_rows=1), None
        assert may_go_on.wait(60)
        yield Batch({}, num_rows=2), None

    batches = stage().run(made())
    assert next(batches).num_rows == 1
    may_go_on.set()
    assert [batch.num_rows for batch in batches] == [2]


def test_batches_are_decoded_ahead_and_come_in_order(stand_in):
    taken = []

    def made():
        for number in range(50):
            taken.append(number)
            yield Batch({}, num_rows=number), None

    batches = stage().run(made())
    assert [batch.num_rows for batch in batches] == list(range(50))
    assert taken == list(range(50))


def test_an_iterator_that_is_given_up_ends_its_threads_and_what_it_took(stand_in):
    closed = []

    def made():
        try:
            while True:
                yield Batch({}, num_rows=1), None
        finally:
            closed.append(True)

    before = set(threading.enumerate())
    batches = stage().run(made())
    next(batches)
    batches.close()
    assert closed
    left = set(threading.enumerate()) - before
    assert not [t for t in left if t.name == "shardwise-images"]


def test_a_loop_that_is_left_does_not_wait_for_a_decoder_that_hangs(stand_in, monkeypatch):
    monkeypatch.setattr(device_images, "_END_TIMEOUT_S", 0.0)
    has_begun, goes_on = threading.Event(), threading.Event()

    def decode_label(data):
        if int(data) == 9:
            has_begun.set()
            goes_on.wait()
        return int(data)

    with loader(data=dataset().decode(cls=decode_label), batch_size=4, **THREADS) as there:
        batches = iter(there)
        next(batches)
        assert has_begun.wait(60)
        [*own] = (t for t in threading.enumerate() if t.name == "shardwise-images")
        leaving = threading.Thread(target=batches.close)
        leaving.start()
        leaving.join(60)
        has_left = not leaving.is_alive()
        goes_on.set()
        assert has_left
        for thread in own:
            thread.join(60)
        assert not any(thread.is_alive() for thread in own)
        assert len(list(there)) == 5


@EXECUTORS
def test_a_forked_child_leaves_the_iterator_with_its_parent_and_starts_its_own(stand_in, executor):
    with loader(batch_size=4, **executor) as there:
        batches = iter(there)
        labels = [next(batches)["cls"].tolist()]
        with pytest.raises(sw.WorkerError, match="was forked from process .* decode"):
            in_child(lambda: next(batches))
        followed = in_child(lambda: [batch["cls"].tolist() for batch in there])
        labels += [batch["cls"].tolist() for batch in batches]
    assert labels == [[*range(i, i + 4)] for i in range(0, 20, 4)]
    assert followed == labels[1:]


def test_on_cuda_a_batch_is_decoded_on_a_stream_and_kept_for_the_programs(stand_in, monkeypatch):
    notes = []

    class Stream:
        def __init__(self, device):
            self.name = f"stream {device}"

        def synchronize(self):
            notes.append(f"{self.name} is done")

    class Kept:
        def record_stream(self, stream):
            notes.append(f"kept for {stream}")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"main of {device}")
    decoding = DeviceImages(torch.device("cuda"), {"jpg": None}, rebuild=lambda request: None)
    monkeypatch.setattr(decoding, "_decode_field", lambda *_: True)
    [batch] = decoding.run((Batch({"jpg": Kept()}, num_rows=1), None) for _ in range(1))
    decoding.keep(batch.data)
    assert notes == ["stream cuda:3 is done", "kept for main of cuda:3"]


def test_an_error_of_the_engine_comes_after_the_batches_before_it(stand_in):
    def made():
        yield Batch({}, num_rows=1), None
        raise KeyError("batch 1")

    given = []
    with pytest.raises(KeyError, match="batch 1"):
        given.extend(batch.num_rows for batch in stage().run(made()))
    assert given == [1]


@pytest.mark.skipif(
    not torch.cuda.is_available() or find_decoder(torch.device("cuda")) is None,
    reason="there is no CUDA device, or neither torchvision nor torchcodec decodes on it",
)
@pytest.mark.parametrize("options", [{}, {"crop": "random"}, {"size": 60, "mode": "gray"}])
def test_nvjpeg_is_near_the_cpu(options):
    with loader(device="cuda", options=options) as there:
        batches = [{**batch, "jpg": batch["jpg"].cpu()} for batch in there]
        assert there.stats()["decoded_on_device"] == len(FILES)
    assert_near(batches, list(loader(decode_on="cpu", options=options)), most=3.0)


# Where it means something.


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"device": None}, r"needs sw\.DataLoader\(device='cuda'\)"),
        ({"device": "cpu"}, r"nothing here decodes JPEG on 'cpu'"),
        ({"collate": len}, "collate= function gets pixels"),
        ({"data": "mapped"}, r"map\(\) get pixels"),
    ],
)
def test_what_the_device_cannot_be_given_is_refused_and_auto_means_the_cpu(arguments, reason):
    arguments = dict(arguments)
    if "data" in arguments:
        arguments["data"] = None
        image = sw.image(size=24, decode_on="device")
        data = dataset().decode(jpg=image).map(lambda sample: sample)
        with pytest.raises(ValueError, match=reason):
            sw.DataLoader(data, rank=0, world_size=1, device="cpu")
        return
    with pytest.raises(ValueError, match=reason):
        loader(**arguments)
    there, here = loader(decode_on="auto", **arguments), loader(decode_on="cpu", **arguments)
    first, other = next(iter(there)), next(iter(here))
    assert first == other if "collate" in arguments else torch.equal(first["jpg"], other["jpg"])
    assert there.stats()["decoded_on_device"] == 0


def test_torchs_own_dataloader_is_refused():
    data = dataset().decode(jpg=sw.image(size=8, decode_on="device"))
    with pytest.raises(ValueError, match=r"sw\.torch\.IterableDataset decodes on the CPU"):
        sw.torch.IterableDataset(data, batch_size=2, rank=0, world_size=1)


def test_a_sample_of_the_dataset_is_decoded_on_the_cpu():
    here, there = (
        dataset().decode(jpg=sw.image(size=8, decode_on=on))[3]["jpg"] for on in ("cpu", "device")
    )
    assert np.array_equal(here, there)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "rgba", "size": 8},
        {"size": 8, "dtype": "uint16"},
        *({"size": 8, "interpolation": how} for how in ("nearest", "area", "linear")),
    ],
)
def test_a_decoder_that_no_device_can_be_is_refused(options):
    with pytest.raises(ValueError, match="decode_on='device'"):
        sw.image(decode_on="device", **options)


def test_there_is_no_decoder_for_the_cpu():
    assert find_decoder(torch.device("cpu")) is None


# Auto.


def test_busy_threads_leave_files_to_the_device_and_idle_ones_take_them_back():
    share = DeviceShare()
    share.begin()
    for _ in range(40):
        share.follow(0.0)
    assert share.share == 1.0
    assert [share.is_next_left() for _ in range(3)] == [True] * 3
    for _ in range(8):
        share.follow(1.0)
    assert 0 < share.share < 1
    for _ in range(40):
        share.follow(1.0)
    assert share.share == 0.0
    assert not share.is_next_left()


def test_a_share_leaves_that_part_of_the_files():
    share = DeviceShare()
    share.share = 0.25
    assert sum(share.is_next_left() for _ in range(100)) == 25


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_auto_has_the_cpus_rows_whatever_the_share(stand_in, monkeypatch, share):
    monkeypatch.setattr(DeviceShare, "follow", lambda self, idle: setattr(self, "share", share))
    arguments = {"options": {"crop": "random"}, "num_threads": 0}
    with loader(decode_on="auto", **arguments) as there:
        for _ in range(2):
            assert_near(list(there), list(loader(decode_on="cpu", **arguments)), most=0.5)
            there.set_epoch(0)
        counts = there.stats()
    assert counts["decoded_on_device"] + counts["decoded_on_cpu"] == 40
    assert (counts["decoded_on_device"] > 0) == (share > 0)
