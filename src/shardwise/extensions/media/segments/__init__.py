"""Segments of sounds as samples: `Dataset.segments`."""
