"""TFRecord files, and the `tf.train.Example` in their records."""
