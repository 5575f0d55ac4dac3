"""JSON lines: text and records, a line per sample."""
