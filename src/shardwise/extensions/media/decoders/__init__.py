"""Decoders of video and sound, and the lazy `media`."""
