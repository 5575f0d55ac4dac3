"""Ends in the middle of a pass whose iterator is a global."""

import sys

import shardwise as sw

data = sw.tar(sys.argv[1])
loader = sw.DataLoader(data, 2, shuffle=True, remainder="drop", num_threads=0, output="numpy")
batches = iter(loader)
next(batches)
