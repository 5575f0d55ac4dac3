"""Commands that look at data: `info`, `verify`, `doctor`, `plan`, `bench`, and what they check."""
