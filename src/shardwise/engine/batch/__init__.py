"""The making of a batch: its rows cut into chunks, read, joined and collated."""
