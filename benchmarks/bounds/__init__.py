"""Experiments that show what bounds a goal which is not met: the same work with the log taken out of it."""
