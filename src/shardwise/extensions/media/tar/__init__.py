"""Media sidecars: where the frames of the videos and the sound in a tar shard lie."""
