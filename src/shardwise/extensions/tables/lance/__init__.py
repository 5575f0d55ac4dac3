"""Lance tables, LanceDB's among them: rows of one version, by id, out of columnar fragments.

`source` is the dataset's side; `selection` determines the rows; `table` alone calls Lance;
`row_blocks` caches rows that will be read soon; `forked` reads for processes that were forked.
"""

from shardwise.base.errors import imports_of

with imports_of("lance", "Lance tables need pylance, which is not there"):
    import pyarrow  # noqa: F401 - here, so that every module of the package may import it
