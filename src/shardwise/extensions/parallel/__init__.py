"""Ranks of model-parallel groups: one batch for all of them, and parts of its sequences."""
