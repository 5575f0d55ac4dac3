"""One client per kind of store, with its credentials."""
