"""Clips of videos as samples: `Dataset.clips`."""
