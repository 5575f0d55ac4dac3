"""WebDataset's tar shards: scanned by their headers, indexed, read by byte ranges.

The way through it: `headers` and `chain` (arrays of headers), `scan` (a shard's headers),
`members`, `names`, `samples`, `index` and `index_file`, `build`; then `shards` (all of a dataset),
`ranges`, `reader`, `source`. `verify` and `doctor` look at shards closely. Imports nothing here.
"""
