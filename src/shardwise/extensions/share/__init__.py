"""A cache that the nodes of a job share: the plan says who holds what, and frames carry blocks."""
