"""What is read ahead of its use, and how much of it."""
