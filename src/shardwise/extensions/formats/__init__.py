"""Formats that other libraries write: MDS, LitData, TFRecord, token files."""
