"""Arrow's arrays as columns: what the sources of tables share."""

from shardwise.base.errors import imports_of

with imports_of("parquet", "tables need pyarrow, which is not there"):
    import pyarrow  # noqa: F401 - here, so that every module of the package may import it
