"""The engine runs plans: it makes batches, in order, ahead of time, and knows no format.

It sees datasets and executors as protocols (`work.py`); `maker.py` turns one piece of work into a
batch, `schedule.py` lists the work of an epoch, and an executor says who does it: `inline.py` is
the reference, `threads.py` shares the pieces of a window of batches among threads.
"""
