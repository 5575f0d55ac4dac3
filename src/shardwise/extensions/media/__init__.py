"""Video and sound: files, decoders, clips, and their sidecars of tar shards."""
