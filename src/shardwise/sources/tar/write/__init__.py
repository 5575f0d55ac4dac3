"""Shards written whole or not at all."""
