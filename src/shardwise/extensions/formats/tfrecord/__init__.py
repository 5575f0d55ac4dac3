"""TFRecord files, and the `tf.train.Example` in their records: by protobuf and google-crc32c."""

from importlib import import_module

from shardwise.base.errors import MissingExtraError

try:
    for package in ("google.protobuf", "google_crc32c"):
        import_module(package)
except ImportError as error:
    raise MissingExtraError(
        f"TFRecord files need {package}, which is not installed", extra="tfrecord"
    ) from error
