"""Any dataset with `__len__` and `__getitem__` as a source."""
