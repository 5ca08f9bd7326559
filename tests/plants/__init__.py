"""Planted bugs."""
