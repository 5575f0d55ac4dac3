"""Lance tables, LanceDB's among them: rows of one version, by id, out of columnar fragments.

`source` is the dataset's side; `selection` determines the rows; `table` alone calls Lance;
`row_blocks` caches rows that will be read soon; `forked` reads for processes that were forked.
"""
