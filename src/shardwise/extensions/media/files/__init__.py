"""Media files: where each frame lies, and exact frames out of few bytes.

An index (`media_index`) is read from an mp4's `moov`, or made by one demux; it says which bytes a
clip needs (`track`), which are read by ranges (`coded_frames`) and decoded (`frames`, `sound`).
Nothing here draws a random number or keeps a decoder open.
"""
