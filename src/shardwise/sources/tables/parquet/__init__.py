"""Tables in files: Parquet, and the Arrow files of Hugging Face datasets.

A shard is a row group (of an Arrow file, a record batch). Opening reads footers only; rows are
taken from row groups that stay decoded in memory, up to a number of bytes.
"""
