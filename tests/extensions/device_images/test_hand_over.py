"""The memory in which workers pack files is registered with the device, by a CUDA that is none."""

from __future__ import annotations

import gc
import zlib

import torch

import shardwise as sw
from shardwise.extensions.device_images import decoding as device_images
from shardwise.extensions.device_images.decoding import DeviceImages
from shardwise.tensors.device import StreamCopier
from tests.support.device_images import StandIn, jpeg
from tests.support.fake_cuda import FakeCuda, FakeStream
from tests.support.memory_source import MemorySource


def test_packed_files_lie_in_registered_memory_that_is_written_again_after_decoding(monkeypatch):
    cuda = FakeCuda().install(monkeypatch)
    files = [jpeg(number, subsampling=number % 3) for number in range(20)] * 6
    samples = [{"__key__": f"{i:03d}", "jpg": data} for i, data in enumerate(files)]
    data = sw.Dataset(MemorySource(samples)).decode(jpg=sw.image(size=24, decode_on="device"))
    seen = []

    def look(decoding, batch, name, image):
        payloads = [packed.payload() for packed in batch.data[name]]
        lies = [cuda.is_registered(torch.from_numpy(payload)) for payload in payloads]
        seen.append((all(lies), {payload.ctypes.data for payload in payloads}))
        batch.data[name] = torch.tensor([zlib.crc32(payload) for payload in payloads])
        return True

    monkeypatch.setattr(FakeStream, "synchronize", lambda stream: None, raising=False)
    monkeypatch.setattr(device_images, "find_decoder", lambda device: StandIn())
    monkeypatch.setattr(DeviceImages, "_decode_field", look)
    monkeypatch.setattr(StreamCopier, "begin", lambda copier, data: data)
    monkeypatch.setattr(StreamCopier, "end", lambda copier, data: data)
    made = sw.DataLoader(
        data, 8, rank=0, world_size=1, num_workers=1, prefetch_factor=3, timeout=120, device="cuda"
    )
    given = [crc for _ in range(2) for batch in made for crc in batch["jpg"].tolist()]
    assert given == [zlib.crc32(file) for file in files] * 2
    # The first batches show how long files are.
    registered = [addresses for is_registered, addresses in seen if is_registered]
    assert len(registered) >= 20
    assert len(set().union(*registered)) < len(registered) * 8, "memory is used again"
    made.close()
    del made
    gc.collect()
    assert cuda.registered == {}
