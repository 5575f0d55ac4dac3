"""`tf.train.Example` and `SequenceExample` from bytes, by protobuf.

An Example is a SequenceExample without feature lists: the bytes are the same.

Source: TensorFlow's example.proto and feature.proto.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

# Kinds by the name of the list in a Feature.
KINDS = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}

# The fields of each message, numbered from 1; an asterisk is for repeated ones.
_MESSAGES = {
    "BytesList": {"value": "BYTES*"},
    "FloatList": {"value": "FLOAT*"},
    "Int64List": {"value": "INT64*"},
    "Feature": {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"},
    "Features": {"feature": "Features.FeatureEntry*"},
    "FeatureList": {"feature": "Feature*"},
    "FeatureLists": {"feature_list": "FeatureLists.FeatureListEntry*"},
    "SequenceExample": {"context": "Features", "feature_lists": "FeatureLists"},
}

Values = list[bytes] | NDArray[np.float32] | NDArray[np.int64]


class Steps(list[Values]):
    """The values of each step of a feature list."""


def parse_example(
    data: bytes, names: Collection[str] | None = None, *, skipped: Collection[str] = ()
) -> dict[str, tuple[str, Values | Steps]]:
    """Parse the features and feature lists of some names, or all: name -> (kind, its values).

    Those that are `skipped` are left out.

    The kind is "bytes", "float32" or "int64", and "" for steps that have no values. A feature
    without a list is left out.
    """
    try:
        message = _sequence_example().FromString(data)
    except DecodeError as error:
        raise ValueError(f"no Example: {error}") from error
    context, lists = message.context.feature, message.feature_lists.feature_list
    found: dict[str, tuple[str, Values | Steps]] = {}
    for name in context if names is None else names:
        if name in context and name not in skipped:
            feature = context[name]
            if kind := feature.WhichOneof("kind"):
                found[name] = KINDS[kind], _values(feature, kind)
    for name in lists if names is None else names:
        if name in lists and name not in skipped:
            if name in found:
                raise ValueError(
                    f"{name!r} is both a feature of the context and a feature list: take the "
                    "records, features=()"
                )
            found[name] = _steps(name, lists[name].feature)
    return found


def _values(feature: Any, kind: str) -> Values:
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return values[:]  # type: ignore[no-any-return]
    # The buffer of long lists, as a list short ones: 3 us, and 0.04 us a number.
    return np.array(values if len(values) > 64 else values[:], KINDS[kind])


def _steps(name: str, features: Collection[Any]) -> tuple[str, Steps]:
    lists = [feature.WhichOneof("kind") for feature in features]
    steps = [
        _values(feature, kind) if kind else []
        for feature, kind in zip(features, lists, strict=True)
    ]
    kinds = sorted({KINDS[kind] for kind, step in zip(lists, steps, strict=True) if len(step)})
    if len(kinds) > 1:
        raise ValueError(f"the steps of the feature list {name!r} are {' and '.join(kinds)}")
    kind = kinds[0] if kinds else ""
    empty: Values = np.empty(0, kind) if kind in ("float32", "int64") else []
    return kind, Steps([step if len(step) else empty for step in steps])


@cache
def _sequence_example() -> Any:
    """The class of the message, in a separate pool: TensorFlow's may be loaded, too."""
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="tensorflow", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        _describe(message, fields)
        if name == "Feature":
            message.oneof_decl.add(name="kind")
            for field in message.field:
                field.oneof_index = 0
        if name in ("Features", "FeatureLists"):
            kind = name.removesuffix("s")
            entry = message.nested_type.add(name=f"{kind}Entry")
            _describe(entry, {"key": "STRING", "value": kind})
            entry.options.map_entry = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.SequenceExample"))


def _describe(message: Any, fields: dict[str, str]) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(fields.items(), 1):
        label = types.LABEL_REPEATED if kind.endswith("*") else types.LABEL_OPTIONAL
        field = message.field.add(name=name, number=number, label=label)
        kind = kind.removesuffix("*")
        if kind.isupper():
            field.type = types.Type.Value(f"TYPE_{kind}")
        else:
            field.type, field.type_name = types.TYPE_MESSAGE, f".tensorflow.{kind}"
