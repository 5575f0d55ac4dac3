"""Index files: built, kept, found again, and held against the shard that lies there."""
