"""Read-ahead of remote files, within a bound of memory."""
