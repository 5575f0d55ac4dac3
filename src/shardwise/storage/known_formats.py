"""Formats that are known by the bytes they start with: one table for all that take raw bytes.

A file of another format is reported by that format's name, instead of as damaged.
"""

from __future__ import annotations

import re

import numpy as np

# The bytes of a file's start that identify its format.
HEAD_BYTES = 1024

# First bytes, name, and what opens or unpacks it, as a clause; "" where nothing here does.
_FORMATS: list[tuple[bytes, str, str]] = [
    (rb"\x1f\x8b\x08", "gzip", "unpack it with `gzip -d`"),
    (rb"BZh[1-9](1AY&SY|\x17rE8P\x90|$)", "bzip2", "unpack it with `bzip2 -d`"),
    (rb"\xfd7zXZ\0", "xz", "unpack it with `xz -d`"),
    (rb"\x28\xb5\x2f\xfd", "zstd", "unpack it with `zstd -d`"),
    (rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", "lz4", "unpack it with `lz4 -d`"),
    (rb"LZIP\x01|\xff\x06\0\0sNaPpY|\x5d\0\0[\0-\xff]{2}\xff{8}", "compressed data", "unpack it"),
    (rb"\x1f\x9d[\x89-\x90]|[\x50-\x5f]\x2a\x4d\x18", "compressed data", "unpack it"),
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive (.npz and torch.save make such)", ""),
    (rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|!<arch>\n|07070[12]|MSCF\0{4}", "an archive", "unpack it"),
    (rb"\x93NUMPY", "a .npy array", ""),
    (rb"PAR[1E]", "a Parquet file", "sw.parquet opens it"),
    (rb"ARROW1|FEA1|\xff{4}..[\0-\xff]\0[\x04-\x40]\0\0\0", "an Arrow file", "sw.parquet opens it"),
    (rb"ORC|Obj\x01", "an ORC or Avro table", "convert it to Parquet"),
    (rb"(.{512})?\x89HDF\r\n\x1a\n|MATLAB 5.0 MAT", "an HDF5 or MATLAB file", ""),
    (rb"GGUF|(lm|fm|tj|al)gg|.{4}\0{4}\{\s*\"", "model weights (GGUF or safetensors)", ""),
    (rb"\x80[\x02\x03][\x8a\x8c})\](cXUTBCGKMJN]|\x80[\x04\x05]\x95|[\]}]q\0\(", "a pickle", ""),
    (rb"c(\w+\.[\w.]+|copy_reg|__\w+__)\n\w+\n", "a pickle", ""),
    (rb"SQLite format 3\0|.{16}\xde\xc0\xef\xbe|.{8}DUCK", "a database", ""),
    (rb"MMIDIDX\0", "an index of Megatron", "name the .bin beside it"),
    (rb"TNTIDX\0", "an index of the old Megatron", "preprocess the data again"),
    (rb"LITPKDS", "a packed file of lit-gpt", "read it by lit-gpt's PackedDataset"),
    (rb"version https://git-lfs", "a pointer of Git LFS", "fetch the file with `git lfs pull`"),
    (rb"\s*(<!--.*-->\s*)?<(!DOCTYPE html|html|head|body)", "an HTML page", "is the login right?"),
    (rb"\s*<(\?xml|[A-Z]\w*Error|Error|svg|rss)", "an XML document", "is it a store's message?"),
    (rb"\x89PNG\r|\xff\xd8\xff[\xc0-\xfe]|GIF8[79]a|II\*\0|MM\0\*", "an image", ""),
    (rb"BM.{4}\0{4}|8BPS\0", "an image", ""),
    (rb"%PDF-|\x7fELF|MZ\x90\0|\xca\xfe\xba\xbe|\0asm\x01", "a PDF or a program", ""),
    (rb"RIF[FX]|fLaC|OggS|ID3[\x02-\x04]|.{4}ftyp|\x1aE\xdf\xa3", "sound, video or WebP", ""),
    (rb"\xff\xfb[\x50-\xe4]|FORM.{4}AIF|\.snd\0|MThd\0|G.{187}G.{187}G", "sound or video", ""),
    (rb"\n#\xd7\xce", "a RecordIO file of MXNet", ""),
    (rb"\x83\xaf\x70\xd1\r\x88J\x3f", "a file of Riegeli or ArrayRecord", ""),
    (rb"\x02\0..\0\0\x80\0.{4}\0{4}", "a .beton of FFCV", ""),
    (rb"/annex/objects/", "a pointer of git-annex", "fetch the file with `git annex get`"),
    (rb"\xff\xfe(.\0){8}|\xfe\xff(\0.){8}", "text in UTF-16", ""),
]
_TABLE = [
    (re.compile(pattern, re.DOTALL | (re.IGNORECASE if b"DOCTYPE" in pattern else 0)), name, remedy)
    for pattern, name, remedy in _FORMATS
]  # fmt: skip
# Shorter files may be text by chance, and the bytes of shorter ones Latin-1.
_LEAST_TEXT, _LEAST_LATIN = 12, 128
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def known_format(head: bytes, *, num_bytes: int = -1, may_be_text: bool = False) -> str | None:
    """Name the format that starts with these bytes, and what to do, as a clause; None if unknown.

    `head` are the first `HEAD_BYTES`; by the file's size shards of LitData and MDS are known.

    >>> known_format(b"PAR1....")
    'a Parquet file: sw.parquet opens it'
    """
    for pattern, name, remedy in _TABLE:
        if pattern.match(head):
            return f"{name}: {remedy}" if remedy else name
    if _is_tar(head):
        return "a tar archive: sw.tar opens it"
    if len(head) > 12 and _mask_crc32c(head[:8]) == int.from_bytes(head[8:12], "little"):
        return "a TFRecord file: sw.tfrecord opens it"
    if num_bytes >= 0 and (shard := _shard(head, num_bytes)):
        return shard
    return None if may_be_text else _text_format(head)


def _text_format(head: bytes) -> str | None:
    if len(head) < _LEAST_TEXT or _CONTROL.search(head):
        return None
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # The last character may be cut.
        if error.start < len(head) - 3 and len(head) < _LEAST_LATIN:
            return None
    is_json = head.lstrip()[:1] in (b"{", b"[")
    return "JSON: sw.jsonl opens JSON lines" if is_json else "text"


def _is_tar(head: bytes) -> bool:
    """Whether a header adds up to its checksum, if it has no magic, as of old tars."""
    stated = head[148:156].strip(b"\0 ")
    if head[257:262] == b"ustar" or not re.fullmatch(rb"[0-7]+", stated):
        return head[257:262] == b"ustar"
    return int(stated, 8) == sum(head[:148]) + 8 * ord(" ") + sum(head[156:512])


def _mask_crc32c(data: bytes) -> int:
    """The CRC-32C as TFRecord files store it, of a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _shard(head: bytes, num_bytes: int) -> str | None:
    """Chunks of LitData and shards of MDS start with a count and the bounds of their items."""
    count, first = np.frombuffer(head, "<u4", 2).tolist() if len(head) >= 8 else (0, 0)
    last, end = 4 + 4 * count, 8 + 4 * count
    if not count or last + 4 > num_bytes:
        return None
    if last + 4 <= len(head) and int.from_bytes(head[last : last + 4], "little") != num_bytes:
        return None
    if first == end:
        return "a chunk of LitData: name its index.json"
    return "a shard of MDS: sw.mds opens its directory" if head[end : end + 1] == b"{" else None
