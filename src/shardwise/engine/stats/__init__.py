"""What the loader measures: seconds by stage, counts, and what limits it."""
