"""Mixtures: several datasets in one order, drawn by weights."""
