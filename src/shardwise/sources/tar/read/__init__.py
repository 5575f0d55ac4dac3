"""Samples by id: byte ranges of shards, read and cut into fields."""
