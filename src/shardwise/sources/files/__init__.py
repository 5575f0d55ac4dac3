"""Files as samples: class folders, and lists of paths and labels.

The bytes of a file are one field of its sample. For data that is not worth packing, or that
others keep this way; a million small files read far faster from tar shards.
"""
