"""A shard's headers, in order: members, names, samples."""
