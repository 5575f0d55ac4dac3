"""A module of wids that has no names."""
