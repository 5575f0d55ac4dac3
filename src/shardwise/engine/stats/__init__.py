"""The loader's measurements: seconds by stage, counts, and what limits it."""
