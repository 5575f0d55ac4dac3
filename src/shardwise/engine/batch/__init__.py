"""How a batch is made: its rows cut into chunks, read, joined and collated."""
