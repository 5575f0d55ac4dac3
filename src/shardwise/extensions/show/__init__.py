"""Samples and batches as pictures: in a notebook, in a terminal, in files."""
