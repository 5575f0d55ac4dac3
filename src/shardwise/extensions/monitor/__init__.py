"""A run to look at: lines of metrics, a live table, a page, exporters and a trace."""
