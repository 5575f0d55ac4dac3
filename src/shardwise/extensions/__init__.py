"""Extensions: what most trainings do without. The core imports none of them.

The core reaches them by name, through `shardwise.base.plugins`. An extension imports the core, and
no other extension but for what `tests/support/layers.py` lists.
"""
