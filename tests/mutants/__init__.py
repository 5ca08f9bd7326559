"""Systematic mutation of the sources: `python -m tests.mutants`."""
