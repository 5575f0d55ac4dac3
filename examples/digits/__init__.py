"""The demo: handwritten digits, a small network, two kills and two changes of ranks."""

# Samples a step, over all ranks: 2 x 30, 3 x 20 and 1 x 60.
GLOBAL_BATCH = 60
