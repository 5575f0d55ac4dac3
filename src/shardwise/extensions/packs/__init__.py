"""Packs: documents of tokens put together into samples of one length."""
