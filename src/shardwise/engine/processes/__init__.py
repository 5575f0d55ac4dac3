"""The executor of worker processes, and the shared memory in which their batches travel."""
