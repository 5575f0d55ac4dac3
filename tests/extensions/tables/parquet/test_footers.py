"""Bits that flip in a Parquet file: pages with checksums, footers, texts; encrypted columns.

What pyarrow alone makes of a file is the truth for its pages. pyarrow ends the process for some
footers, so these are read in a process of their own.
"""

import base64
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from tests.support.python_code import run_code

ROWS = {
    "id": list(range(60)),
    "text": [f"x{i % 9}" for i in range(60)],
    "parts": [[{"x": i, "y": "q"}] for i in range(60)],
    "meta": [{"u": i, "v": 2.0} for i in range(60)],
    "ragged": [None if i % 7 == 0 else [i] * (i % 3) for i in range(60)],
}


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none", "use_dictionary": False},
        {"compression": "none", "use_dictionary": True, "data_page_version": "2.0"},
        {"compression": "zstd"},
    ],
)
@pytest.mark.parametrize("num", [50, pytest.param(150, marks=pytest.mark.long)])
def test_a_flipped_bit_in_a_page_with_a_checksum_is_never_a_wrong_value(tmp_path, options, num):
    path = tmp_path / "a.parquet"
    columns = {"x": pa.array(range(0, 300, 5)), "s": [f"text {i % 7}" for i in range(60)]}
    pq.write_table(pa.table(columns), path, row_group_size=20, write_page_checksum=True, **options)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    flips, refused = random.Random(0), 0
    for _ in range(num):
        damaged = bytearray(data)
        damaged[flips.randrange(4, footer)] ^= 1 << flips.randrange(8)
        path.write_bytes(damaged)
        try:
            wanted = pq.ParquetFile(path, page_checksum_verification=True).read().to_pylist()
        except (pa.ArrowException, OSError):
            wanted = None
        try:
            found = [{"x": s["x"], "s": s["s"]} for s in sw.parquet(path)]
        except DataError:
            found = None
            refused += 1
        assert found == wanted
    assert refused > 0.6 * num


def test_a_flipped_bit_names_file_and_row_group_and_its_rows_can_be_skipped(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"x": range(60)}),
        path,
        row_group_size=20,
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    chunk = pq.read_metadata(path).row_group(1).column(0)
    with open(path, "r+b") as file:
        file.seek(chunk.data_page_offset + chunk.total_compressed_size - 8)
        file.write(b"\x07")
    with pytest.raises(DataError, match=r"row group 1 can't be decoded: .*CRC") as caught:
        sw.parquet(path)[25]
    assert caught.value.url == path
    with sw.DataLoader(
        sw.parquet(path), batch_size=20, on_error="skip", rank=0, world_size=1, num_threads=1
    ) as loader:
        assert [i for b in loader for i in b["x"].tolist()] == [*range(20), *range(40, 60)]
        assert loader.stats()["skipped"] == 20


# Footers with flipped bits, each in a fork: exit code 0 for rows, 1 for a DataError.
READ_MUTATED = """
import os, random, sys
import shardwise as sw
from shardwise.storage.local import LocalFile

path, scratch, begin, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if sys.argv[5] == "together":
    LocalFile.is_remote = True
data = open(path, "rb").read()
length = int.from_bytes(data[-8:-4], "little")
list(sw.parquet(path))  # what is imported for it is imported here
codes = {}
for seed in range(begin, end):
    rng, damaged = random.Random(seed), bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        place = len(data) - 8 - length + rng.randrange(length)
        damaged[place] = rng.choice([damaged[place] ^ 1 << rng.randrange(8), rng.randrange(256), 0])
    open(scratch, "wb").write(damaged)
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            for number, _ in enumerate(sw.parquet(scratch)):
                if number > 100:
                    break
            code = 0
        except sw.DataError as error:
            code = 1 if error.url == scratch else 3
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    codes.setdefault(code, []).append(seed)
print({code: seeds if code not in (0, 1) else len(seeds) for code, seeds in codes.items()})
sys.exit(set(codes) != {0, 1})
"""


@pytest.mark.parametrize("way", ["together", "one by one"])
@pytest.mark.parametrize("num", [30, pytest.param(250, marks=pytest.mark.long)])
def test_no_damaged_footer_ends_the_process_or_raises_anything_but_a_data_error(tmp_path, way, num):
    # A store is asked for the columns of a row group together.
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(ROWS), path, row_group_size=20)
    done = run_code(READ_MUTATED, path, tmp_path / "damaged.parquet", 0, num, way)
    assert done.returncode == 0, done.stdout + done.stderr


READ_ENCRYPTED = """
import sys
import shardwise as sw

ds = sw.parquet(sys.argv[1])
assert ds.select("id")[3] == {"__key__": "a:3", "id": 3}
try:
    ds[3]
except sw.DataError as error:
    print(error)
"""


class Keys(encryption.KmsClient):
    """Keys that are not wrapped."""

    def __init__(self, _config):
        super().__init__()

    def wrap_key(self, key, _master):
        return base64.b64encode(key)

    def unwrap_key(self, wrapped, _master):
        return base64.b64decode(wrapped)


def test_of_a_file_with_an_encrypted_column_the_others_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"id": range(10), "secret": range(10)})
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(
            footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=True
        ),
    )
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    done = run_code(READ_ENCRYPTED, path)
    assert done.returncode == 0, done.stderr
    assert "a column among 'id', 'secret' is encrypted, which is not supported" in done.stdout
    assert str(path) in done.stdout


@pytest.mark.parametrize(
    ("make", "row"),
    [
        (lambda texts: texts, 5),
        (lambda texts: texts.dictionary_encode(), 5),
        (lambda texts: pa.ListArray.from_arrays(pa.array([0, 2, 3, 7, 8], pa.int32()), texts), 2),
        (
            # Python objects.
            lambda texts: pa.ListArray.from_arrays(
                pa.array(range(9), pa.int32()), pa.StructArray.from_arrays([texts], ["t"])
            ),
            5,
        ),
    ],
)
def test_text_that_is_no_utf8_names_file_and_row(tmp_path, make, row):
    path = str(tmp_path / "a.parquet")
    raw = pa.array([b"ok"] * 5 + [b"\xff\xfe"] + [b"ok"] * 2)
    column = make(pa.Array.from_buffers(pa.string(), 8, raw.buffers()))
    pq.write_table(pa.table({"s": column}), path, row_group_size=3)
    ds = sw.parquet(path)
    assert ds[row - 1]["s"] in ("ok", ["ok"], [{"t": "ok"}])
    with pytest.raises(DataError, match="no UTF-8") as caught:
        ds.load(np.arange(len(ds))[::-1])
    assert (caught.value.url, caught.value.key, caught.value.field) == (path, f"a:{row}", "s")
