"""What every other package stands on: errors, columns, ranks, and the seam to extensions."""
