"""Arrow's arrays as columns: what the sources of tables share."""

from shardwise.base.errors import MissingExtraError

try:
    import pyarrow  # noqa: F401 - here, so that every module of the package may import it
except ImportError as error:
    raise MissingExtraError("tables need pyarrow, which is not there", extra="parquet") from error
