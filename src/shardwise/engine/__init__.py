"""The engine runs plans: it builds batches, in order, ahead of time, and knows no format.

It sees datasets and executors as protocols (`request.py`). `batch/builder.py` turns a request into
a batch, `batch/schedule.py` lists the requests of an epoch, and an executor runs them: `inline.py`
is the reference, `threads.py` and `processes/` share the row chunks of several batches.
"""
