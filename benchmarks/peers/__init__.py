"""One file a peer: its best documented way to do the three tasks.

Each has `load(directory, task, *, decode)`, which yields the size of batch after batch for ever
(for "tiny-raw": 1 a sample, one epoch), and converts the corpus to the peer's own format first
where it has one. `decode` is Pillow with draft decoding, as most programs have it, or shardwise's
decoder. A peer that does not offer a task raises `NotImplementedError`.
"""
