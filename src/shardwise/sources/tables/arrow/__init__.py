"""Arrow's arrays as columns: what the sources of tables share."""
