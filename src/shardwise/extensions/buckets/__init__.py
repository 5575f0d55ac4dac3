"""Buckets: batches of samples of about one length."""
