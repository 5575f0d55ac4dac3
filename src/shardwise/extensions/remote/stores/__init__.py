"""One client a kind of store, with its credentials."""
