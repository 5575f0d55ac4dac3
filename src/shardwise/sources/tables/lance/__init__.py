"""Lance tables, LanceDB's among them: rows of one version, by id, out of columnar fragments.

`source` is what the dataset sees; `plan` says which rows there are; `table` alone speaks to Lance;
`blocks` keeps rows that will be asked for soon; `helper` reads for processes that were forked.
"""
