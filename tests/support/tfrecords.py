"""Files of TFRecord, as TensorFlow writes them, and the messages in them by Google's protobuf."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import google_crc32c


def record_file(records: Sequence[bytes]) -> bytes:
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, _crc(length), record, _crc(record)]
    return b"".join(parts)


@cache
def _crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)


def example(features: Mapping[str, Any]) -> bytes:
    """A serialised `tf.train.Example`."""
    return sequence_example(features, {})


def sequence_example(context: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> bytes:
    """A serialised `tf.train.SequenceExample`; each list holds the values of its steps.

    Without lists these are the bytes of an Example.
    """
    message = _messages()["SequenceExample"]()
    for name, values in context.items():
        _fill(message.context.feature[name], values)
    for name, steps in lists.items():
        # A list without steps is there, too.
        added = message.feature_lists.feature_list[name].feature
        for values in steps:
            _fill(added.add(), values)
    return message.SerializeToString()


def _fill(feature: Any, values: Any) -> None:
    if not len(values):
        return
    if isinstance(values[0], bytes):
        feature.bytes_list.value.extend(values)
    elif isinstance(values[0], float):
        feature.float_list.value.extend(values)
    else:
        feature.int64_list.value.extend(values)


@cache
def _messages() -> dict[str, Any]:
    """TensorFlow's feature.proto and example.proto, without TensorFlow."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="tensorflow", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto

    def add(name: str, *fields: tuple[str, int, str, bool]) -> Any:
        message = file.message_type.add(name=name)
        for each, number, kind, is_repeated in fields:
            added = message.field.add(
                name=each,
                number=number,
                label=field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL,
            )
            if kind in ("BYTES", "FLOAT", "INT64"):
                added.type = getattr(field, f"TYPE_{kind}")
            else:
                added.type, added.type_name = field.TYPE_MESSAGE, f".tensorflow.{kind}"
        return message

    def add_map(name: str, entry: str, field_name: str, kind: str) -> None:
        message = add(name, (field_name, 1, f"{name}.{entry}", True))
        nested = message.nested_type.add(name=entry)
        nested.options.map_entry = True
        nested.field.add(name="key", number=1, label=1, type=field.TYPE_STRING)
        nested.field.add(
            name="value", number=2, label=1, type=field.TYPE_MESSAGE,
            type_name=f".tensorflow.{kind}",
        )  # fmt: skip

    add("BytesList", ("value", 1, "BYTES", True))
    add("FloatList", ("value", 1, "FLOAT", True))
    add("Int64List", ("value", 1, "INT64", True))
    feature = add(
        "Feature", ("bytes_list", 1, "BytesList", False), ("float_list", 2, "FloatList", False),
        ("int64_list", 3, "Int64List", False),
    )  # fmt: skip
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    add_map("Features", "FeatureEntry", "feature", "Feature")
    add("FeatureList", ("feature", 1, "Feature", True))
    add_map("FeatureLists", "FeatureListEntry", "feature_list", "FeatureList")
    add(
        "SequenceExample", ("context", 1, "Features", False),
        ("feature_lists", 2, "FeatureLists", False),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        for name in names
    }
