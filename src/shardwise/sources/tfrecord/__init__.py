"""TFRecord files, and the `tf.train.Example` in their records."""

from shardwise.sources.tfrecord.source import TfRecordSource

__all__ = ["TfRecordSource"]
