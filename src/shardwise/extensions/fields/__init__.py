"""Other fields for the samples of a source: those of another dataset, and lists of members."""
