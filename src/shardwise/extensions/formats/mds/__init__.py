"""MDS shards, as MosaicML Streaming writes them."""
