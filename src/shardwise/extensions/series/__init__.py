"""Windows of series of rows as samples: `sw.windows`, and `sw.lerobot` for sets of robots."""
