"""Files are called by the format that they begin with; tokens are not taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.storage.known_formats import HEAD_BYTES, known_format
from tests.support.known_files import FILES


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_called_by_its_format(name):
    data = FILES[name]
    found = known_format(data[:HEAD_BYTES], num_bytes=len(data))
    assert found is not None
    assert name in found


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4"])
def test_random_tokens_are_of_no_known_format(dtype):
    rng = np.random.default_rng(0)
    for vocabulary in (256, 50257, 128256):
        top = min(vocabulary, np.iinfo(dtype).max)
        for _ in range(300):
            tokens = rng.integers(top, size=4096).astype(dtype).tobytes()
            assert known_format(tokens[:1024], num_bytes=len(tokens)) is None
