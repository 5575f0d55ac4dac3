"""A cache shared by the nodes of a job: the plan assigns blocks to nodes, and frames carry them."""
