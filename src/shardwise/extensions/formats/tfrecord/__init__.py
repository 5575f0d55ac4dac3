"""TFRecord files, and the `tf.train.Example` in their records: by protobuf and google-crc32c."""

from importlib import import_module

from shardwise.base.errors import imports_of

for package in ("google.protobuf", "google_crc32c"):
    with imports_of("tfrecord", f"TFRecord files need {package}, which is not installed"):
        import_module(package)
