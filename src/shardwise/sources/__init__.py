"""One module a format; each gives a manifest and reads rows, and knows nothing of the others."""
