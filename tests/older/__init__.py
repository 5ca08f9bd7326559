"""Regions of different versions: a revision of this repository beside the present tree."""
