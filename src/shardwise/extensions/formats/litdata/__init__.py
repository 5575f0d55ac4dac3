"""Chunks of LitData, as its `optimize` writes them."""
