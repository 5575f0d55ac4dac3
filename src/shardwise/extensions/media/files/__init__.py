"""Media files: where each frame lies, and exact frames out of few bytes.

An index (`media_index`) is read from an mp4's `moov`, or made by one demux; it gives the bytes that
a clip needs (`track`), which are read by ranges (`coded_frames`) and decoded (`frames`, `sound`).
A file that is damaged, cut or promises too much is a `DataError`, wherever that shows; without PyAV
what it reads is a `MissingExtraError`. Nothing here draws a random number or keeps a decoder open.
"""
