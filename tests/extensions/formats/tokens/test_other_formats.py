"""Files of tokens: other formats and byte orders are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from tests.support.known_files import FILES


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("options", [{}, {"dtype": "uint16"}])
def test_a_token_file_of_another_format_is_refused_by_name(tmp_path, name, options):
    path = tmp_path / "a.bin"
    path.write_bytes(FILES[name] + bytes(len(FILES[name]) % 2 * (name not in ("text", "JSON"))))
    with pytest.raises(sw.DataError, match=name) as caught:
        len(sw.tokens(str(path), block=2, **options))
    assert "dtype=" not in caught.value.reason


def test_text_is_tokens_of_one_byte_for_who_says_so(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(FILES["text"])
    assert sw.tokens(str(path), block=2, dtype="uint8")[0]["tokens"].tolist() == [90, 97, 197]


@pytest.mark.parametrize("dtype", [">u2", ">i4", ">u4", ">i8", np.dtype(">u2")])
def test_big_endian_tokens_are_refused(dtype):
    with pytest.raises(TypeError, match="little-endian; swap the bytes once"):
        sw.tokens("a.bin", block=3, dtype=dtype)


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, "<u2"), (20240801, "<u4")])
@pytest.mark.parametrize("version", [1, 7])
def test_llmc_files_of_both_magics_and_versions_are_read(tmp_path, magic, dtype, version):
    path, header = tmp_path / "a.bin", np.zeros(256, "<i4")
    header[:3] = magic, version, 100
    path.write_bytes(header.tobytes() + np.arange(100, dtype=dtype).tobytes())
    assert sw.tokens(str(path), block=3)[0]["tokens"].tolist() == [0, 1, 2, 3]
    header[1] = 9
    path.write_bytes(header.tobytes() + np.arange(100, dtype=dtype).tobytes())
    with pytest.raises(sw.DataError, match=r"llm.c of version 9"):
        len(sw.tokens(str(path), block=3, dtype="uint16"))
