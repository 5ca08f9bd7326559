"""Crash tests: power cuts on a modelled disk, kill -9 of real processes, failing syncs, full disks, flipped bits."""
