"""Tables in files: Parquet, and the Arrow files of Hugging Face datasets.

A shard is a row group (of an Arrow file, a record batch). Opening reads footers only; rows are
taken from a cache of decoded row groups, up to a number of bytes.
"""
