"""Partitions, beside what the same work takes at least."""
