"""The base of every other package: errors, columns, ranks, and the seam to extensions."""
